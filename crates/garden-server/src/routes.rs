//! Every path of the server, who answers, and what the description says about it: a route cannot be made without that.

mod table;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, MethodRouter};

use crate::openapi::Operation;
use crate::{Server, gate, ours};
pub(crate) use table::table;

/// What is said about a path, by its methods.
#[derive(Debug)]
pub(crate) struct Described {
    pub path: &'static str,
    pub operations: Vec<(&'static str, Operation)>,
}

/// A path, and who answers.
pub(crate) struct Route {
    pub described: Described,
    answers: MethodRouter<Arc<Server>, Infallible>,
}

impl Route {
    fn at(path: &'static str) -> Route {
        Route { described: Described { path, operations: Vec::new() }, answers: MethodRouter::new() }
    }

    fn get<T: 'static>(self, handler: impl Handler<T, Arc<Server>>, operation: Operation) -> Route {
        self.on(MethodFilter::GET, "get", handler, operation)
    }

    fn post<T: 'static>(self, handler: impl Handler<T, Arc<Server>>, operation: Operation) -> Route {
        self.on(MethodFilter::POST, "post", handler, operation)
    }

    fn delete<T: 'static>(self, handler: impl Handler<T, Arc<Server>>, operation: Operation) -> Route {
        self.on(MethodFilter::DELETE, "delete", handler, operation)
    }

    fn on<T: 'static>(
        mut self,
        method: MethodFilter,
        name: &'static str,
        handler: impl Handler<T, Arc<Server>>,
        operation: Operation,
    ) -> Route {
        self.described.operations.push((name, operation));
        Route { answers: self.answers.on(method, handler), ..self }
    }
}

/// Where OpenAI's clients look, and where Azure's look for the same, with their newer and their older kind of address.
const OPENAI: &str = "/v1/";
const AZURE: [&str; 2] = ["/openai/v1/", "/openai/"];

/// The path under which a route is described.
pub(crate) fn described_path(path: &str) -> String {
    match AZURE.iter().find_map(|beginning| path.strip_prefix(beginning)) {
        Some(rest) => format!("{OPENAI}{rest}"),
        None => path.to_string(),
    }
}

/// All of them behind the gate.
pub(crate) fn router(server: Arc<Server>) -> Router {
    let mut router = Router::new();
    for Route { described, answers } in table() {
        let answers = answers.fallback(ours::wrong_method);
        if let Some(rest) = described.path.strip_prefix(OPENAI) {
            for beginning in AZURE {
                router = router.route(&format!("{beginning}{rest}"), answers.clone());
            }
        }
        router = router.route(described.path, answers);
    }
    router
        .fallback(ours::nothing)
        // Each body has its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(&server), gate::pass))
        .with_state(server)
}
