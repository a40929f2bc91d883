//! Masks of grammars, to be compared with another implementation's by `scripts/clients/masks.py`.
//!
//!     cargo run --release -p ingle-text --example masks -- MODEL
//!
//! Prints the number of the model's tokens and its end tokens. Then it answers each line of
//! standard input, a JSON object, with another.
//!
//! `{"schema": …}`, `{"regex": …}`, `{"gbnf": …}` or `{"lark": …}` starts a grammar. The answer is
//! the first mask, for a schema also the `lark` that it was compiled to, or `error`. `{"token": 7}`
//! accepts a token, and the answer is the next mask.
//!
//! `mask` is hexadecimal, one byte for eight tokens, lowest bit first. `ns` is its time, and
//! `compile_ns` the time of compiling the grammar.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

use ingle_text::{Grammar, GrammarCompiler, Matcher, SchemaOptions, Tokenizer, prepare_schema};
use serde_json::{Value, json};
use weights::Access;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let model = std::env::args().nth(1).ok_or("usage: masks MODEL")?;
    let path = Path::new(&model);
    let checkpoint = formats::open(path, Access::default())?;
    let tokenizer = Tokenizer::of_checkpoint(path, checkpoint.naming, &checkpoint.metadata)?;
    let tokenizer = tokenizer.ok_or("the model has no tokenizer")?;
    let n_vocab = tokenizer.n_tokens();
    let compiler = GrammarCompiler::new(&tokenizer, n_vocab)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", json!({ "n_vocab": n_vocab, "ends": tokenizer.ends() }))?;
    let mut state = None;
    for line in std::io::stdin().lock().lines() {
        let answer = answer(&serde_json::from_str(&line?)?, &compiler, &mut state, n_vocab);
        writeln!(out, "{}", answer.unwrap_or_else(|error| json!({ "error": error.to_string() })))?;
        out.flush()?;
    }
    Ok(())
}

/// Answers a line.
fn answer(
    line: &Value,
    compiler: &GrammarCompiler,
    state: &mut Option<Matcher>,
    n_vocab: usize,
) -> Result<Value, Failure> {
    let text = |key: &str| line[key].as_str().map(str::to_owned);
    let mut begun = Instant::now();
    let (mut compile_ns, mut lark) = (None, None);
    if let Some(token) = line["token"].as_u64() {
        state.as_mut().ok_or("no grammar has begun")?.accept(u32::try_from(token)?)?;
    } else {
        *state = None;
        let grammar = match line.get("schema") {
            Some(schema) => Grammar::JsonSchema(schema.clone()),
            None => (text("regex").map(Grammar::Regex))
                .or_else(|| text("gbnf").map(Grammar::Gbnf))
                .or_else(|| text("lark").map(Grammar::Lark))
                .ok_or("expected schema, regex, gbnf, lark or token")?,
        };
        *state = Some(compiler.compile(&grammar)?);
        compile_ns = Some(begun.elapsed().as_nanos() as u64);
        if let Some(schema) = line.get("schema") {
            lark = Some(prepare_schema(schema, &SchemaOptions::default())?.grammar().to_owned());
        }
        begun = Instant::now();
    }
    let matcher = state.as_mut().ok_or("no grammar has begun")?;
    let mut words = vec![0; n_vocab.div_ceil(32)];
    matcher.mask(&mut words)?;
    let ns = begun.elapsed().as_nanos() as u64;
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let mask: String = bytes.map(|byte| format!("{byte:02x}")).collect();
    let mut answer =
        json!({ "mask": mask, "ns": ns, "compile_ns": compile_ns, "is_over": matcher.is_over() });
    if let Some(lark) = lark {
        answer["lark"] = lark.into();
    }
    Ok(answer)
}
