"""The chassis of all checks: a pool of processes, a record of results, tables and failures."""
