//! Elastic Load Balancing v2: network load balancers.
