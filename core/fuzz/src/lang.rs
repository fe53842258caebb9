//! Statements in whatever words: refused with a place in the text, or printed as a statement that says the same.

pub fn run(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        nervix_loopback_fuzz::fuzz::language(text);
        glance(text);
    }
}

/// What the client's own glance at a statement makes of it.
fn glance(text: &str) {
    let mut engine = nervix_engine::Engine::new(nervix_engine::Config {
        seeds: Vec::new(),
        domain: None,
        request_timeout: 1,
        retry_timeout: 1,
        seed: 0,
    });
    let now = nervix_engine::Now {
        mono: 1,
        unix_millis: 1,
    };
    let (execution, _) = engine.prepare(now, text, [0; 10]);
    engine.call(
        now,
        nervix_engine::CallId(1),
        nervix_engine::Call::Execute(execution),
    );
    while engine.output().is_some() {}
}
