"""The server's side, and the loop over rounds."""
