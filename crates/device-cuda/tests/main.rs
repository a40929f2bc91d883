//! Tests that need no GPU are beside the code. These need one, and say so where there is none.
