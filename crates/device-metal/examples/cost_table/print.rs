//! The tables, as docs/metal.md has them.

use crate::count::{Cost, Rows, dispatches, whole};
use crate::model::{CHIPS, Range};
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

/// The rates of a step of `n` rows on the chips, each a range.
fn rates(cost: &Cost, n: usize) -> Vec<String> {
    let range = |[slow, fast]: Range| format!("{:.0} to {:.0}", n as f64 / slow, n as f64 / fast);
    (0..CHIPS.len()).map(|chip| range(cost.seconds(chip))).collect()
}

/// Prints the rates of models on all chips.
fn chips(costs: &[(&Shapes, Cost)], n: usize) {
    let names: Vec<&str> = CHIPS.iter().map(|chip| chip.name).collect();
    println!("\n| tok/s (prediction) | {} |\n|{}", names.join(" | "), "---|".repeat(1 + names.len()));
    for (s, cost) in costs {
        println!("| {} | {} |", s.name, rates(cost, n).join(" | "));
    }
}

fn tokens(models: &[&Shapes], rows: Rows) {
    println!(
        "| model | dispatches | barriers | read MB | written MB | least MB | read / least | threadgroup MB | shuffles k | \
         reductions k | tok/s (prediction) | published: best, llama.cpp, MLX |\n|{}",
        "---|".repeat(12)
    );
    let mut costs = Vec::new();
    for s in models {
        let (c, _) = whole(s, rows);
        costs.push((*s, c));
        println!(
            "| {} | {} | {} | {:.1} | {:.2} | {:.1} | {:.3} | {:.2} | {:.0} | {:.0} | {} | {} |",
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
            rates(&c, 1)[0],
            s.decode
        );
    }
    chips(&costs, 1);
}

fn prompts(models: &[&Shapes], rows: Rows) {
    println!(
        "| model | dispatches (a layer) | barriers | read MB | written MB | least MB | loaded GB | threadgroup GB | \
         8x8x8 products M | products / least | tok/s (prediction) | published: BaseRT, llama.cpp, MLX |\n|{}",
        "---|".repeat(12)
    );
    let mut costs = Vec::new();
    for s in models {
        let (c, of_layer) = whole(s, rows);
        costs.push((*s, c));
        let of_layer: Vec<String> = of_layer.iter().map(f64::to_string).collect();
        println!(
            "| {} | {} ({}) | {} | {:.0} | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} | {:.3} | {} | {} |",
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
            rates(&c, rows.n)[0],
            s.prefill
        );
    }
    chips(&costs, rows.n);
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
            "| {function} | {} | {:.3} | {:.3} | {:.2} | {:.2} | {:.1} | {} |",
            if barriers > 0.0 { "yes" } else { "" },
            read / 1e6,
            written / 1e6,
            loaded / 1e6,
            threadgroup / 1e6,
            products / 1e3,
            busy[0].map(|seconds| format!("{:.1}", seconds * 1e6)).join(" to ")
        );
    }
    println!();
}
