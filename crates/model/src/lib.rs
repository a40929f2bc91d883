//! Model families as data: descriptors, checkpoint numbers, tensor names, and the plan builder.
