//! Neutron v2.0: version document, extensions, networks, subnets, ports.

mod listing;
mod resources;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::http::{Reply, Request};
use crate::openstack::identity::Caller;
use crate::openstack::region::{Network, Port, Region, Subnet};
use crate::openstack::{OpenStackCloud, webob_detail, webob_error, webob_method};
use crate::server::Target;

/// An error as Neutron words it.
#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    /// Name of the exception's class.
    class: &'static str,
    message: String,
}

impl Fault {
    fn new(status: StatusCode, class: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            class,
            message: message.into(),
        }
    }

    /// A request that the framework refuses.
    fn http_bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "HTTPBadRequest", message)
    }

    fn no_resource() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "HTTPNotFound",
            "The resource could not be found.",
        )
    }

    fn bad_method() -> Self {
        let message = "The server could not comply with the request since it is either malformed or otherwise \
                       incorrect.";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "HTTPMethodNotAllowed", message)
    }
}

/// Neutron's error document.
pub(crate) fn error(status: StatusCode, class: &str, message: &str) -> Reply {
    let body = json!({"NeutronError": {"type": class, "message": message, "detail": ""}});
    Reply::json(status, &body)
}

/// A request below `/v2.0` with all that its answer depends on.
struct Api<'a> {
    cloud: &'a OpenStackCloud,
    region: &'a Region,
    request: &'a Request,
    caller: &'a Caller,
    /// URL of the endpoint that was used.
    endpoint: String,
}

/// Extensions by alias, name and description, as a current cloud with routers and trunks has them.
const EXTENSIONS: &[(&str, &str, &str)] = &[
    (
        "allowed-address-pairs",
        "Allowed Address Pairs",
        "Provides allowed address pairs",
    ),
    (
        "empty-string-filtering",
        "Empty String Filtering Extension",
        "Allow filtering by attributes with empty string value",
    ),
    (
        "external-net",
        "Neutron external network",
        "Adds external network attribute to network resource.",
    ),
    (
        "filter-validation",
        "Filter parameters validation",
        "Provides validation on filter parameters.",
    ),
    (
        "ip-substring-filtering",
        "IP address substring filtering",
        "Provides IP address substring filtering when listing ports",
    ),
    (
        "net-mtu",
        "Network MTU",
        "Provides MTU attribute for a network resource.",
    ),
    (
        "pagination",
        "Pagination support",
        "Extension that indicates that pagination is enabled.",
    ),
    ("port-security", "Port Security", "Provides port security"),
    (
        "project-id",
        "project_id field enabled",
        "Extension that indicates that project_id field is enabled.",
    ),
    (
        "revision-if-match",
        "If-Match constraints based on revision_number",
        "Extension indicating that If-Match based on revision_number is supported.",
    ),
    (
        "security-group",
        "security-group",
        "The security groups extension.",
    ),
    (
        "sorting",
        "Sorting support",
        "Extension that indicates that sorting is enabled.",
    ),
    (
        "standard-attr-description",
        "standard-attr-description",
        "Extension to add descriptions to standard attributes",
    ),
    (
        "standard-attr-revisions",
        "Resource revision numbers",
        "This extension will display the revision number of neutron resources.",
    ),
    (
        "standard-attr-tag",
        "Tag support for resources with standard attribute",
        "Enables to set tag on resources with standard attribute.",
    ),
    (
        "standard-attr-timestamp",
        "Resource timestamps",
        "Adds created_at and updated_at fields to all Neutron resources that have Neutron standard attributes.",
    ),
    ("trunk", "Trunk Extension", "Provides support for trunk ports"),
    ("trunk-details", "Trunk port details", "Expose trunk port details"),
];

/// The operation behind a path below Neutron's endpoint.
pub(crate) fn op(method: &Method, rest: &[String]) -> &'static str {
    // The framework decodes a path before it divides it.
    if rest.iter().any(|segment| segment.contains('/')) {
        return "unknown";
    }
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let (collection, item) = match rest.as_slice() {
        [] | [""] => {
            return if *method == Method::GET {
                "version_list"
            } else {
                "bad_method"
            };
        }
        ["v2.0", ""] => {
            return if *method == Method::GET {
                "resource_list"
            } else {
                "bad_method"
            };
        }
        ["v2.0", collection] | ["v2.0", collection, ""] => (without_format(collection), false),
        ["v2.0", collection, _] => (*collection, true),
        _ => return "unknown",
    };
    let ops = match collection {
        "networks" => [
            "network_list",
            "network_create",
            "network_get",
            "network_update",
            "network_delete",
        ],
        "subnets" => [
            "subnet_list",
            "subnet_create",
            "subnet_get",
            "subnet_update",
            "subnet_delete",
        ],
        "ports" => [
            "port_list",
            "port_create",
            "port_get",
            "port_update",
            "port_delete",
        ],
        "extensions" => [
            "extension_list",
            "extension_write",
            "extension_get",
            "extension_write",
            "extension_write",
        ],
        _ => return "unknown",
    };
    let none = match collection {
        "networks" => "network_none",
        "subnets" => "subnet_none",
        _ => "port_none",
    };
    let [list, create, get, update, delete] = ops;
    match (item, method) {
        (false, &Method::GET) => list,
        (false, &Method::POST) => create,
        (true, &Method::GET) => get,
        (true, &Method::PUT) => update,
        (true, &Method::DELETE) => delete,
        // The extensions controller never learnt about 405.
        _ if collection == "extensions" => "extension_write",
        // Without an id, the id of what is to change is taken to be None.
        (false, &Method::PUT | &Method::DELETE) => none,
        _ => "bad_method",
    }
}

/// Answers a request to Neutron.
pub(crate) fn handle(cloud: &OpenStackCloud, region: &Region, request: &Request, target: &Target) -> Reply {
    let endpoint = cloud.endpoint(target);
    if target.op == "version_list" {
        let link = json!([{"rel": "self", "href": format!("{endpoint}/v2.0/")}]);
        let versions = json!({"versions": [{"id": "v2.0", "status": "CURRENT", "links": link}]});
        return Reply::json(StatusCode::OK, &versions);
    }
    if target.rest.first().is_none_or(|first| first != "v2.0") {
        return if target.op == "bad_method" {
            webob_method(&request.method)
        } else {
            webob_error(request, StatusCode::NOT_FOUND)
        };
    }
    let caller = match cloud.caller(request) {
        Ok(caller) => caller,
        Err(reply) => return *reply,
    };
    let api = Api {
        cloud,
        region,
        request,
        caller: &caller,
        endpoint,
    };
    answer(&api, target).unwrap_or_else(|fault| error(fault.status, fault.class, &fault.message))
}

/// The last part of a path without the format that may follow it.
fn without_format(segment: &str) -> &str {
    segment.strip_suffix(".json").unwrap_or(segment)
}

fn answer(api: &Api<'_>, target: &Target) -> Result<Reply, Fault> {
    let id = target
        .rest
        .get(2)
        .map(|id| without_format(id))
        .unwrap_or_default();
    match target.op {
        "network_list" => listing::list::<Network>(api),
        "network_get" => listing::show::<Network>(api, id),
        "subnet_list" => listing::list::<Subnet>(api),
        "subnet_get" => listing::show::<Subnet>(api, id),
        "port_list" => listing::list::<Port>(api),
        "port_get" => listing::show::<Port>(api, id),
        "resource_list" => Ok(resource_list(api)),
        "extension_list" => {
            let extensions: Vec<Value> = EXTENSIONS.iter().map(extension).collect();
            Ok(Reply::json(StatusCode::OK, &json!({ "extensions": extensions })))
        }
        "extension_get" => Ok(match EXTENSIONS.iter().find(|(alias, ..)| *alias == id) {
            Some(found) => Reply::json(StatusCode::OK, &json!({ "extension": extension(found) })),
            None => {
                let detail = format!("Extension with alias {id} does not exist");
                webob_detail(api.request, StatusCode::NOT_FOUND, &detail)
            }
        }),
        "extension_write" => {
            let detail = "Resource not found.";
            Ok(webob_detail(api.request, StatusCode::NOT_FOUND, detail))
        }
        "network_none" => Err(listing::not_found::<Network>("None")),
        "subnet_none" => Err(listing::not_found::<Subnet>("None")),
        "port_none" => Err(listing::not_found::<Port>("None")),
        "unknown" => Err(Fault::no_resource()),
        "bad_method" => Err(Fault::bad_method()),
        _ => Err(Fault::new(
            StatusCode::NOT_IMPLEMENTED,
            "NotImplementedError",
            "The simulator does not have this operation.",
        )),
    }
}

fn extension((alias, name, description): &(&str, &str, &str)) -> Value {
    json!({
        "alias": alias,
        "name": name,
        "description": description,
        "updated": "2016-01-01T10:00:00-00:00",
        "links": [],
    })
}

fn resource_list(api: &Api<'_>) -> Reply {
    let resource = |name: &str, collection: &str| {
        let href = format!("{}/v2.0/{collection}", api.endpoint);
        json!({"name": name, "collection": collection, "links": [{"rel": "self", "href": href}]})
    };
    let resources = [
        resource("network", "networks"),
        resource("subnet", "subnets"),
        resource("port", "ports"),
    ];
    Reply::json(StatusCode::OK, &json!({ "resources": resources }))
}
