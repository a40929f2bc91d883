//! Helpers of the tests of several formats.

use weights::Checkpoint;

/// Asserts that a message contains all parts.
pub fn has_parts(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

/// Checks every reader's guarantees for the tensors that it accepts.
pub fn check_tensors(checkpoint: &Checkpoint) {
    for tensor in &checkpoint.tensors {
        assert!(tensor.shape.iter().all(|&dim| dim > 0));
        assert!(tensor.n_cols().is_multiple_of(tensor.block.block_len()));
        assert_eq!(tensor.data.len(), tensor.n_rows() * tensor.row_bytes());
    }
}
