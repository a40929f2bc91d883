// As with NDEBUG.
#define assert(condition) ((void)0)
