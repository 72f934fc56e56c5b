// A target needs a source; this one exists for the precompiled header of the tests.
