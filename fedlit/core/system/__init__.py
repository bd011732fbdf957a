"""Services for a process of this machine: starting, imports, files, documents, and values out of JSON."""
