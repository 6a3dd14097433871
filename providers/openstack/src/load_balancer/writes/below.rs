//! Objects below a load balancer, and what a change of them means for the listings.

use ccm_core::client::{Indexed, IndexedCache};

use crate::{
    client::{Op, listing::Resource},
    load_balancer::{
        reads::Reads,
        responses::{Listener, Monitor, Pool, Provisioning},
    },
};

/// An object below a load balancer.
pub(crate) trait Below: Indexed + Resource + Clone {
    /// Creating, changing and deleting it.
    const OPS: [Op; 3];

    /// The listing of all of them.
    fn cache(reads: &Reads) -> &IndexedCache<Self>;

    /// Is as it will be once the load balancer has settled.
    fn settle(&mut self);

    /// One was created below this load balancer, or may have been. What other listings show of it follows.
    fn created(_reads: &Reads, _balancer: &str, _created: Option<&Self>) {}

    /// One was deleted, or may have been.
    fn deleted(_reads: &Reads, _of: (&str, &str, &str), _known: bool) {}
}

macro_rules! below {
    ($($object:ident in $cache:ident by $ops:expr, { $($hooks:tt)* })+) => {$(
        impl Below for $object {
            const OPS: [Op; 3] = $ops;

            fn cache(reads: &Reads) -> &IndexedCache<Self> {
                &reads.$cache
            }

            fn settle(&mut self) {
                self.provisioning_status = Provisioning::Active;
            }

            $($hooks)*
        }
    )+};
}

below! {
    Listener in listeners by [Op::ListenerCreate, Op::ListenerUpdate, Op::ListenerDelete], {
        fn deleted(reads: &Reads, (balancer, ..): (&str, &str, &str), _: bool) {
            // Its pool no longer says that it is the listener's.
            reads.pools.invalidate(balancer);
        }
    }
    Pool in pools by [Op::PoolCreate, Op::PoolUpdate, Op::PoolDelete], {
        fn created(reads: &Reads, balancer: &str, _: Option<&Self>) {
            reads.listeners.invalidate(balancer);
        }

        fn deleted(reads: &Reads, (balancer, _, id): (&str, &str, &str), _: bool) {
            reads.members.forget(id);
            reads.listeners.invalidate(balancer);
            reads.monitors.invalidate(balancer);
        }
    }
    Monitor in monitors by [Op::MonitorCreate, Op::MonitorUpdate, Op::MonitorDelete], {
        fn created(reads: &Reads, balancer: &str, created: Option<&Self>) {
            match created.and_then(|monitor| Some((monitor, monitor.pools.first()?))) {
                Some((monitor, pool)) => reads.pools.update(&pool.id, |pool| {
                    pool.healthmonitor_id.clone_from(&monitor.id);
                }),
                None => reads.pools.invalidate(balancer),
            }
        }

        fn deleted(reads: &Reads, (balancer, pool, _): (&str, &str, &str), known: bool) {
            if known {
                reads.pools.update(pool, |pool| pool.healthmonitor_id.clear());
            } else {
                reads.pools.invalidate(balancer);
            }
        }
    }
}
