//! Requests to Neutron.

use reqwest::Method;

use super::Case;

pub(super) fn neutron() -> Vec<Case> {
    let absent = "5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11";
    let bare = |path: &str| Case::new("network", Method::GET, path);
    let get = |path: &str| bare(path).token("<token>");
    let mut cases = vec![
        bare(""),
        bare("/"),
        bare("/v2.0/ports"),
        bare("/v2.0/ports").token("nonsense"),
        bare("/v2.0/ports").token("<revoked-token>"),
        bare("/v2.0/ports").token("<unscoped-token>"),
        bare("/v2.0/networks").token("<unscoped-token>"),
        bare("/v2.0/networks/<net>").token("<unscoped-token>"),
        bare("/v2.0/ports?device_id=<a>").token("<credential-token>"),
    ];
    for (plural, id) in [
        ("networks", "<net>"),
        ("subnets", "<subnet>"),
        ("ports", "<port-a>"),
    ] {
        for query in [
            "",
            "?fields=id",
            "?fields=id&fields=name",
            "?fields=id&fields=nothing",
            "?fields=nothing",
            "?fields=",
            "?fields=id,name",
            "?nothing=1",
        ] {
            cases.push(get(&format!("/v2.0/{plural}/{id}{query}")));
        }
        for path in [absent, "not-an-id", "%20"] {
            cases.push(get(&format!("/v2.0/{plural}/{path}")));
        }
        for query in [
            "id=<id>",
            "id=<id>&fields=id",
            "id=<id>&fields=id&fields=nothing",
            "id=<id>&fields=nothing",
            "id=<id>&fields=",
            "id=nothing",
            "id=",
            "id=<id>&id=nothing",
            "id=<id>&nothing=1",
            "nothing=1&nothing=2",
            "nothing=1&other=2",
            "name=nothing",
            "name=<name>&name=nothing",
            "name=<name>&fields=name",
            "tenant_id=<project>&fields=tenant_id",
            "project_id=<project>&project_id=nothing&fields=project_id",
            "project_id=nothing",
            "admin_state_up=true&id=<id>&fields=id",
            "description=&id=<id>&fields=id",
            "limit=x",
            "limit=-1",
            "limit=0&id=<id>&fields=id",
            "limit=&id=<id>&fields=id",
            "limit=1.5",
            &format!("marker={absent}"),
            &format!("marker={absent}&limit=1&id=<id>&fields=id"),
            "marker=nothing&limit=1&id=<id>&fields=id",
            "marker=&limit=1&id=<id>&fields=id",
            "id=<id>&limit=1&fields=id",
            "id=<id>&limit=2&fields=id",
            "id=<id>&limit=1&marker=<id>&fields=id",
            "id=<id>&limit=1&limit=x&fields=id",
            "id=<id>&limit=x&limit=1&fields=id",
        ] {
            // A router has ports, too, which the test did not create.
            let more = match (plural, query.contains("<id>")) {
                ("ports", false) => "&device_owner=compute:nova",
                _ => "",
            };
            let query = query.replace("<id>", id);
            cases.push(get(&format!("/v2.0/{plural}?{query}{more}")));
        }
    }
    let devices = "device_id=<a>&device_id=<b>&device_id=<c>";
    for query in [
        "device_id=<a>",
        devices,
        &format!("{devices}&device_id={absent}"),
        &format!(
            "{devices}&fields=id&fields=device_id&fields=fixed_ips&fields=network_id&fields=status&fields=tags"
        ),
        &format!("{devices}&fields=trunk_details&fields=id"),
        &format!("{devices}&limit=1&fields=id"),
        &format!("{devices}&limit=2&fields=id"),
        &format!("{devices}&limit=2&marker=<port-a>&fields=id"),
        &format!("{devices}&limit=1&marker=<port-b>&fields=id"),
        &format!("{devices}&limit=1&marker=<port-c>&fields=id"),
        &format!("{devices}&limit=3&fields=id"),
        "device_id=<a>&marker=<port-b>&limit=1&fields=id",
        "device_id=nothing",
        "device_id=&device_owner=compute:nova",
        "device_id=<foreign>",
        "device_owner=compute:nova&fields=device_id",
        "device_owner=compute:nova&device_owner=nothing&fields=device_id",
        "device_owner=nothing",
        "network_id=<net>&device_owner=compute:nova&fields=id",
        "network_id=nothing",
        "status=ACTIVE&device_owner=compute:nova&fields=id",
        "status=nothing",
        "mac_address=nothing",
        "fixed_ips=ip_address%3D<ip-a>&fields=id",
        "fixed_ips=ip_address%3D<ip-a>&fixed_ips=ip_address%3D<ip-b>&fields=id",
        "fixed_ips=subnet_id%3D<subnet>&device_owner=compute:nova&fields=id",
        "security_groups=nothing",
        "ip_allocation=nothing",
        "trunk_details=nothing",
        "extra_dhcp_opts=nothing",
        "allowed_address_pairs=nothing",
        "port_security_enabled=true&device_owner=compute:nova&fields=id",
        "binding:host_id=nothing",
        "binding:vnic_type=normal&device_owner=compute:nova&fields=id",
        "created_at=nothing",
        "updated_at=nothing",
        "revision_number=x",
        "changed_since=2020-01-01T00:00:00Z&device_owner=compute:nova&fields=id",
        "changed_since=x",
    ] {
        cases.push(get(&format!("/v2.0/ports?{query}")));
    }
    for query in [
        "fields=id",
        "name=<name>",
        "name=public&fields=id",
        "router:external=true&fields=name",
        "router:external=True&fields=name",
        "router:external=1&fields=name",
        "shared=false&fields=name",
        "shared=true",
        "id=<net>&id=<public-net>&fields=id&fields=name",
        "subnets=nothing",
        "status=ACTIVE&fields=name",
    ] {
        cases.push(get(&format!("/v2.0/networks?{query}")));
    }
    for query in [
        "network_id=<net>",
        "cidr=10.7.0.0/24&fields=id",
        "ip_version=4&network_id=<net>&fields=id",
        "enable_dhcp=true&network_id=<net>&fields=id",
        "gateway_ip=10.7.0.1&fields=id",
        "subnetpool_id=nothing",
    ] {
        cases.push(get(&format!("/v2.0/subnets?{query}")));
    }
    cases
}
