"""Training under minibatch constraints: the library's defaults beside Cooper and humancompatible-train."""
