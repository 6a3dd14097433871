//! The requests for every annotation, and for every pair of annotations.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use ccm_core::{
    Environment, Priority,
    config::ConfigFiles,
    load_balancer::{ClusterTag, ClusterView, OwnershipTag, ServiceView},
    plan::objects::{self, ObjectCalls as _},
    testkit::{
        self,
        cluster::{annotate, service},
    },
};
use ccm_testbed::moto::Moto;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream},
    net::{TcpListener, TcpStream},
};

use super::Sender;
use crate::{
    client::{Api, ec2::Subnet},
    config::{self, LoadBalancing},
    load_balancer::{
        Model, annotations as a,
        desired::{DesiredBalancer, ObjectBuilder, ObservedPart},
        fields,
        kinds::{Object, ObjectChange, ObjectKind, Objects, SetEntry, TAGS},
        spec::{Flavor, Spec},
    },
    site::Cluster,
};

/// The annotations of load balancers with a value that is not the default.
const VALUES: &[(&str, &str)] = &[
    (a::TYPE, "nlb"),
    (a::INTERNAL, "true"),
    (a::SCHEME, "internal"),
    (a::TARGET_TYPE, "instance"),
    (a::IP_ADDRESS_TYPE, "dualstack"),
    (a::SUBNETS, "subnet-0123456789abcdef0,subnet-0123456789abcdef1"),
    (a::EIP_ALLOCATIONS, "eipalloc-0123456789abcdef0,eipalloc-0123456789abcdef1"),
    (a::PRIVATE_ADDRESSES, "10.0.0.10,10.0.1.10"),
    (a::SECURITY_GROUPS, "sg-0123456789abcdef0"),
    (a::EXTRA_SECURITY_GROUPS, "sg-0123456789abcdef1"),
    (a::TAGS, "team=web,cost="),
    (a::NODE_LABELS, "pool=a"),
    (
        a::CERTIFICATES,
        "arn:aws:acm:us-east-1:123456789012:certificate/1,arn:aws:acm:us-east-1:123456789012:certificate/2",
    ),
    (a::SSL_PORTS, "443"),
    (a::SSL_POLICY, "ELBSecurityPolicy-TLS-1-2-2017-01"),
    (a::ALPN_POLICY, "HTTP2Preferred"),
    (a::BACKEND_PROTOCOL, "ssl"),
    (a::CROSS_ZONE, "true"),
    (a::ACCESS_LOG, "true"),
    (a::ACCESS_LOG_BUCKET, "logs"),
    (a::ACCESS_LOG_PREFIX, "web"),
    (a::ACCESS_LOG_INTERVAL, "5"),
    (a::ATTRIBUTES, "dns_record.client_routing_policy=availability_zone_affinity"),
    (
        a::TARGET_GROUP_ATTRIBUTES,
        "preserve_client_ip.enabled=false,proxy_protocol_v2.enabled=true",
    ),
    (a::PROXY_PROTOCOL, "*"),
    (a::DRAINING, "true"),
    (a::DRAINING_TIMEOUT, "60"),
    (a::IDLE_TIMEOUT, "300"),
    (a::CHECK_PROTOCOL, "http"),
    (a::CHECK_PORT, "8081"),
    (a::CHECK_PATH, "/ready"),
    (a::CHECK_CODES, "200-299"),
    (a::CHECK_HEALTHY, "4"),
    (a::CHECK_UNHEALTHY, "4"),
    (a::CHECK_TIMEOUT, "6"),
    (a::CHECK_INTERVAL, "15"),
];

/// The forms of requests.
type Forms = Arc<Mutex<Vec<String>>>;

/// A server that answers every request of the query protocol with an empty success. Its URL, and the forms that it received.
async fn empty_answers() -> (String, Forms) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let forms = Forms::default();
    let received = Arc::clone(&forms);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_all(BufStream::new(stream), Arc::clone(&received)));
        }
    });
    (url, forms)
}

async fn answer_all(mut stream: BufStream<TcpStream>, forms: Forms) -> Option<()> {
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            match line.trim().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().ok()?;
                }
                None if line.trim().is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let body = String::from_utf8(body).ok()?;
        forms.lock().push(body.clone());
        let action = body.split('&').find_map(|pair| pair.strip_prefix("Action="))?;
        let text = format!("<{action}Response><{action}Result/></{action}Response>");
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/xml\r\ncontent-length: {}\r\n\r\n", text.len());
        stream.write_all(head.as_bytes()).await.ok()?;
        stream.write_all(text.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
    }
}

async fn api() -> (Api, Forms) {
    let (url, forms) = empty_answers().await;
    let mut conf = "[Global]\nZone=us-east-1a\nVPC=vpc-1\nKubernetesClusterID=c\n".to_owned();
    for (at, service) in ["EC2", "Elastic Load Balancing", "Elastic Load Balancing v2"].iter().enumerate() {
        conf += &format!(
            "[ServiceOverride \"{at}\"]\nService={service}\nRegion=us-east-1\nURL={url}\nSigningRegion=us-east-1\n"
        );
    }
    conf += "[Quota]\n";
    for bucket in ["ec2-write", "ec2-tags", "elb-modify", "elb-write"] {
        conf += &format!("{bucket}-requests-per-second=100000\n{bucket}-burst=100000\n");
    }
    let environment = Environment::default()
        .with("AWS_ACCESS_KEY_ID", "x")
        .with("AWS_SECRET_ACCESS_KEY", "x")
        .with("AWS_EC2_METADATA_DISABLED", "true");
    let (_folder, context) = testkit::context(&conf, environment);
    let loaded = config::load(&context, &mut ConfigFiles::default()).unwrap().value;
    let api = Api::connect(loaded.connection, &loaded.conf.quota, &context).await;
    (api.unwrap(), forms)
}

fn subnets() -> Vec<Subnet> {
    let subnet = |at: usize| Subnet {
        id: format!("subnet-0123456789abcdef{at}"),
        zone: format!("us-east-1{}", ["a", "b"][at]),
        cidrs: vec![format!("10.0.{at}.0/24"), format!("2001:db8:{at}::/64")],
        ..Subnet::default()
    };
    (0..2).map(subnet).collect()
}

/// The load balancer of a Service with these annotations; `None` if the Service is refused.
fn desired(model: &Model, annotations: &[(&str, &str)], flavor: Flavor) -> Option<DesiredBalancer> {
    let mut service = service("web", &[80, 443]);
    for (key, value) in annotations {
        annotate(&mut service, key, Some(value));
    }
    let service: Arc<ServiceView> = Arc::new(service);
    let spec = Spec::read(&service, &model.settings, flavor);
    let cluster = ClusterView {
        name: "kubernetes".into(),
        ownership_tag: OwnershipTag::Known(ClusterTag::of("1")),
        ..ClusterView::default()
    };
    let subnets = subnets();
    let builder = ObjectBuilder {
        model,
        cluster: &cluster,
        service: &service,
        spec: &spec,
        subnets: &subnets,
    };
    let objects = match flavor {
        Flavor::Classic => builder.classic(),
        _ => builder.network(),
    };
    let instances = BTreeSet::from(["i-0123456789abcdef0".to_owned()]);
    spec.invalid.is_empty().then(|| DesiredBalancer {
        objects: Some(objects),
        instances: Some(instances),
        tag: cluster.ownership_tag.clone(),
        changed: true,
        defaulted: spec.defaulted,
        defaults: spec.defaults,
        ..DesiredBalancer::default()
    })
}

/// Sends the changes to a desired state, except for those that were sent before, and applies them.
async fn send_all(
    sender: &Sender<'_>,
    desired: &DesiredBalancer,
    observed: &mut ObservedPart,
    sent: &mut HashSet<String>,
    bugs: &mut BTreeMap<String, String>,
    what: &str,
) {
    for step in desired.plan(observed).steps {
        let change: &ObjectChange = &step.change;
        let object = observed.objects.get(change.kind, &change.key);
        if sent.insert(format!("{change:?} {object:?}")) {
            let result = objects::send(sender, change, &observed.objects).await;
            if let Err(error) = result
                && error.report().contains("bug")
            {
                bugs.insert(error.report(), what.to_owned());
            }
        }
        observed.objects.fold(change, None);
        for object in &mut observed.objects.all {
            if object.id.is_empty() {
                object.id = match object.kind {
                    ObjectKind::Group => "sg-0123456789abcdef0".to_owned(),
                    ObjectKind::Classic => object.key.clone(),
                    kind => {
                        format!("arn:aws:elasticloadbalancing:us-east-1:123456789012:{kind:?}/{}", object.key)
                    }
                };
            }
            if object.kind == ObjectKind::Balancer {
                object.attributes.insert("type", "network".into());
            }
        }
    }
}

/// Creates a load balancer for every annotation alone and for every pair of annotations, and then removes the annotations.
async fn requests_of(flavor: Flavor, managed_security_groups: bool) {
    let (api, forms) = api().await;
    let sender = Sender {
        client: api.at(Priority::User),
        vpc: "vpc-1",
        sources: &BTreeSet::new(),
    };
    let settings = LoadBalancing {
        managed_security_groups,
        default_type: flavor,
        ..LoadBalancing::default()
    };
    let model = Model {
        settings: Arc::new(settings),
        cluster: Cluster {
            id: "c".to_owned(),
            legacy: false,
        },
    };
    let plain = desired(&model, &[], flavor).unwrap();
    let (mut sent, mut bugs) = (HashSet::new(), BTreeMap::new());
    let mut served = 0;
    for (at, first) in VALUES.iter().enumerate() {
        for second in &VALUES[at..] {
            let annotations = [*first, *second];
            let Some(desired) = desired(&model, &annotations, flavor) else {
                continue;
            };
            served += 1;
            let what = format!("{} {}", first.0, second.0);
            let mut observed = ObservedPart::default();
            send_all(&sender, &desired, &mut observed, &mut sent, &mut bugs, &what).await;
            assert!(observed.balancer().is_some(), "{what}");
            send_all(&sender, &plain, &mut observed, &mut sent, &mut bugs, &what).await;
            assert_eq!(plain.plan(&observed).steps, [], "{what}");
        }
    }
    assert!(served > 300, "{served} Services");
    assert_eq!(bugs, BTreeMap::new());
    let forms = forms.lock().clone();
    assert!(forms.len() > 300, "{} requests", forms.len());
    let moto = Moto::shared().await.unwrap().account("c", 0).await.unwrap();
    let refused = moto.check(&forms).await.unwrap();
    assert_eq!(refused, [""; 0], "of {} requests", forms.len());
}

#[tokio::test]
async fn every_pair_of_annotations_of_a_network_load_balancer_makes_complete_requests() {
    requests_of(Flavor::Network, false).await;
    requests_of(Flavor::Network, true).await;
}

#[tokio::test]
async fn every_pair_of_annotations_of_a_classic_load_balancer_makes_complete_requests() {
    requests_of(Flavor::Classic, false).await;
}

#[tokio::test]
async fn a_security_group_without_tags_is_created() {
    let (api, forms) = api().await;
    let sender = Sender {
        client: api.at(Priority::User),
        vpc: "vpc-0123456789abcdef0",
        sources: &BTreeSet::new(),
    };
    let group = Object::new(ObjectKind::Group, "k8s-elb-a").with(fields::DESCRIPTION, "without tags");
    let tagged = group.clone().entries(TAGS, [SetEntry::tag("team", "web")]);
    for object in [&group, &tagged] {
        // The answer of this server has no ID.
        assert!(sender.create(object, &[], &Objects::default()).await.is_err());
    }
    let forms = forms.lock().clone();
    let has_specification: Vec<_> = forms.iter().map(|form| form.contains("TagSpecification")).collect();
    assert_eq!(has_specification, [false, true], "{forms:?}");
    let moto = Moto::shared().await.unwrap().account("c", 0).await.unwrap();
    assert_eq!(moto.check(&forms).await.unwrap(), [""; 0]);
}

#[test]
fn every_annotation_has_a_value_in_these_tests() {
    let named: BTreeSet<_> = VALUES.iter().map(|(key, _)| *key).collect();
    let all: BTreeSet<_> = a::TABLE.entries.iter().map(|entry| entry.name).collect();
    assert_eq!(named, all);
}
