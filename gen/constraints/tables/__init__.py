"""An automaton and a vocabulary as tables on the device: which tokens each state allows."""
