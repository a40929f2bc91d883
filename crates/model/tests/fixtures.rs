//! Every family's plan on the reference interpreter gives the logits that transformers gives.
#![allow(clippy::unwrap_used)]

mod common;

use common::{FIXTURES, check, open};
use model::ModelSpec;

#[test]
fn all_fixtures_agree_in_one_chunk_and_token_by_token() {
    for name in FIXTURES {
        let checkpoint = open(name);
        let spec = ModelSpec::from_checkpoint(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(spec.family.name, name);
        assert!(spec.unused_tensors.is_empty(), "{name}: {:?}", spec.unused_tensors);
        let plan = spec.plan(&checkpoint).unwrap_or_else(|e| panic!("{name}: {e}"));
        for chunk in [40, 7, 1] {
            let worst = check(name, &plan, chunk);
            println!("{name}: chunks of {chunk}: {worst:.1e}");
        }
    }
}
