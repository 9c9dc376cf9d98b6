"""One algorithm a file; `registry` names them all."""
