//! The tables, as docs/metal.md has them.

use crate::count::{Cost, Rows, dispatches, whole};
use crate::plan::N_TOKENS;
use crate::shapes::{Layers, MODELS, Shapes};

/// Position of the decoded token, unless the command line has another.
const POSITION: usize = 511;

/// Prints the tables that the command line requests.
pub fn tables() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut taken = |word: &str| {
        let before = arguments.len();
        arguments.retain(|argument| argument != word);
        arguments.len() < before
    };
    if taken("scans") {
        return crate::scans::scans();
    }
    if taken("norms") {
        return crate::norms::norms();
    }
    let (prefill, kernels) = (taken("prefill"), taken("kernels"));
    let position = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(POSITION);
    arguments.retain(|argument| argument.parse::<usize>().is_err());
    let wanted = |s: &&Shapes| arguments.is_empty() || arguments.iter().any(|part| s.name.contains(part));
    let rows = match prefill {
        true => Rows { n: N_TOKENS, position: position.max(N_TOKENS - 1) },
        false => Rows { n: 1, position },
    };
    let models: Vec<&Shapes> = MODELS.iter().filter(wanted).collect();
    println!(
        "{} at position {}, Q4_0 (embedding and head Q6_K), F16 keys and values; counted, not timed:\n",
        if prefill { "A chunk that ends" } else { "A token" },
        rows.position
    );
    match (kernels, prefill) {
        (true, _) => models.iter().for_each(|s| one_by_one(s, rows)),
        (_, true) => prompts(&models, rows),
        _ => tokens(&models, rows),
    }
}

fn tokens(models: &[&Shapes], rows: Rows) {
    println!(
        "| model | dispatches | barriers | read MB | written MB | least MB | read / least | threadgroup MB | shuffles k | \
         reductions k | tok/s (prediction) | published best, llama.cpp |\n|{}",
        "---|".repeat(12)
    );
    for s in models {
        let (c, _) = whole(s, rows);
        let [serial, concurrent] = c.seconds();
        println!(
            "| {} | {} | {} | {:.1} | {:.2} | {:.1} | {:.3} | {:.2} | {:.0} | {:.0} | {:.0} to {:.0} | {} |",
            s.name,
            c.dispatches,
            c.barriers,
            c.read / 1e6,
            c.written / 1e6,
            c.least / 1e6,
            c.read / c.least,
            c.threadgroup / 1e6,
            c.shuffles / 1e3,
            c.reductions / 1e3,
            1.0 / serial,
            1.0 / concurrent,
            s.decode
        );
    }
}

fn prompts(models: &[&Shapes], rows: Rows) {
    println!(
        "| model | dispatches (a layer) | barriers | read MB | written MB | least MB | loaded GB | threadgroup GB | \
         8x8x8 products M | products / least | tok/s (prediction) | published |\n|{}",
        "---|".repeat(12)
    );
    for s in models {
        let (c, of_layer) = whole(s, rows);
        let of_layer: Vec<String> = of_layer.iter().map(f64::to_string).collect();
        let [serial, concurrent] = c.seconds().map(|seconds| rows.n as f64 / seconds);
        println!(
            "| {} | {} ({}) | {} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} | {:.3} | {:.0} to {:.0} | {} |",
            s.name,
            c.dispatches,
            of_layer.join(", "),
            c.barriers,
            c.read / 1e6,
            c.written / 1e6,
            c.least / 1e6,
            c.loaded / 1e9,
            c.threadgroup / 1e9,
            c.products / 1e6,
            c.products / c.least_products,
            serial,
            concurrent,
            s.prefill
        );
    }
}

/// Each dispatch of a model with one layer of each kind.
fn one_by_one(s: &Shapes, rows: Rows) {
    println!(
        "{}\n\n| kernel | barrier | read MB | written MB | loaded MB | threadgroup MB | products k | µs (prediction) |\n|{}",
        s.name,
        "---|".repeat(8)
    );
    let layers: Vec<&Layers> = s.layers.iter().collect();
    for (function, Cost { barriers, read, written, loaded, threadgroup, products, busy, .. }) in
        dispatches(s, &layers, rows).0
    {
        println!(
            "| {function} | {} | {:.3} | {:.3} | {:.2} | {:.2} | {:.1} | {:.1} |",
            if barriers > 0.0 { "yes" } else { "" },
            read / 1e6,
            written / 1e6,
            loaded / 1e6,
            threadgroup / 1e6,
            products / 1e3,
            busy * 1e6
        );
    }
    println!();
}
