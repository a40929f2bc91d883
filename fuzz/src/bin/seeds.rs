//! Writes the seeds of a target into a folder: `seeds TARGET FOLDER`. Without arguments it lists
//! the targets.

use std::path::Path;
use std::process::ExitCode;

use ingle_fuzz::TARGETS;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = arguments.as_slice() else {
        for target in TARGETS {
            println!("{}", target.name);
        }
        return ExitCode::SUCCESS;
    };
    let Some(target) = TARGETS.iter().find(|target| target.name == *name) else {
        eprintln!("no target is called {name:?}");
        return ExitCode::FAILURE;
    };
    for (i, seed) in (target.seeds)().into_iter().enumerate() {
        if let Err(error) = std::fs::write(Path::new(folder).join(format!("seed-{i}")), seed) {
            eprintln!("{folder}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
