"""One module a command; each imports what is heavy inside its body."""
