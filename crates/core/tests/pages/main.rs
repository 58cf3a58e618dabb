//! Pages of directories: what they tell of many names, and how the pieces of large ones are
//! written, read and given up (decision 15).

mod heads;
mod left;
mod many_names;
mod volume;
mod written;
