//! The command line: flags, configuration, output.
