//! Load balancers of Services.
