//! Plain data of ebb: ids, attributes, commands, requests, errors.
