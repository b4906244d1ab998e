"""The endpoints, each with the fields that it takes and the answers that it writes."""
