"""How each kind of JSON value is written: as texts that an automaton reads."""
