"""What a process of this machine needs: how it starts, what it imports, files and documents, values out of JSON."""
