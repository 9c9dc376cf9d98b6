"""One file per algorithm: what it is, its options, its plan, its run and its prediction; `registry` lists them."""
