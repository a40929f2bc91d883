//! Texts by their similarity to a query: `cargo run --release -p ingle --example search -- "a pet"`

use ingle::Model;

fn main() -> ingle::Result<()> {
    let query = std::env::args().nth(1).unwrap_or_else(|| "a pet".to_owned());
    let model = Model::load("minilm:l6")?;
    let texts = ["a cat sleeps", "stocks fell", "a dog barks", "it rains"];
    let of_query = model.embed(&[&query])?.vectors.remove(0);
    let score = |vector: &Vec<f32>| vector.iter().zip(&of_query).map(|(a, b)| a * b).sum::<f32>();
    let mut scored: Vec<_> = model.embed(&texts)?.vectors.iter().map(score).zip(texts).collect();
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    for (score, text) in scored {
        println!("{score:.3}  {text}");
    }
    Ok(())
}
