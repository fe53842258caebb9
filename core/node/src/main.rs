mod graph;
mod lang;

fn main() {}
