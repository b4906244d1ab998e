"""How the next token of each row is chosen: draws, beams, and samplers that are not gen's own."""
