"""The commands and what they share: options, data, runs, tables. Nothing outside this folder imports it."""
