"""Where inputs lie and how references to them travel: files, object stores, the spool."""
