//! Loading, memory plan, KV pages, steps, sampling: the engine over any device.
