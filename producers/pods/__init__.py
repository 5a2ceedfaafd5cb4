"""Which pods run where: node-pods records and the clock records that make silence a fact in the log."""
