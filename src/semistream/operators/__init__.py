"""One algorithm per file; `registry` names them all."""
