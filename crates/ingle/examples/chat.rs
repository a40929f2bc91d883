//! A chat in the terminal: `cargo run --release -p ingle --example chat -- smollm2:135m`

use std::io::{self, BufRead, Write};

use ingle::{Chat, Model, Piece};

fn main() -> ingle::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "smollm2:135m".to_owned());
    let model = Model::load(name)?;
    let mut chat = Chat::new().system("Answer briefly.");
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        chat = chat.user(line);
        let mut text = String::new();
        for event in model.chat(chat.clone())? {
            if let Piece::Text { text: more, .. } = event?.piece {
                print!("{more}");
                let _ = io::stdout().flush();
                text.push_str(&more);
            }
        }
        println!();
        chat = chat.assistant(text);
    }
    Ok(())
}
