//! moto behind its proxy: accounts are separate, requests are parsed, rules apply.
use ccm_testbed::{
    moto::{Account, Moto},
    proxy::{Action, Rule, aws_refusal},
};
use serde_json::json;

/// Sends a request in the Query protocol. moto reads the service from the signature's scope.
async fn ask(account: &Account<'_>, service: &str, form: &str) -> (u16, String) {
    let scope = format!(
        "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=x"
    );
    let request = reqwest::Client::new()
        .post(account.proxy.url())
        .header("Authorization", scope)
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body(form.to_owned());
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_separate_and_requests_are_parsed() {
    let moto = Moto::shared().await.unwrap();
    let account = moto.account("one", 2).await.unwrap();
    let other = moto.account("two", 0).await.unwrap();
    let describe = "Action=DescribeInstances&Version=2016-11-15";
    let (status, text) = ask(&account, "ec2", describe).await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(text.matches("<instanceId>").count(), 2);
    assert!(!ask(&other, "ec2", describe).await.1.contains("<instanceId>"));
    let groups = "Action=CreateSecurityGroup&Version=2016-11-15&GroupName=g&GroupDescription=g";
    assert_eq!(ask(&account, "ec2", groups).await.0, 200);
    let seen: Vec<_> = account.proxy.requests().iter().map(ToString::to_string).collect();
    assert_eq!(seen, ["POST ec2 DescribeInstances", "POST ec2 CreateSecurityGroup"]);
    assert_eq!(account.proxy.writes().len(), 1);

    let throttled = aws_refusal(true, "RequestLimitExceeded", "slowly");
    account.proxy.add(Rule::when(
        |request| request.name == "DescribeInstances",
        Action::answer(503, throttled.clone()),
    ));
    assert_eq!(ask(&account, "ec2", describe).await, (503, throttled));
}

#[tokio::test(flavor = "multi_thread")]
async fn differences_from_aws_are_corrected() {
    let moto = Moto::shared().await.unwrap();
    let account = moto.account("corrected", 1).await.unwrap();
    let topology = "Action=DescribeInstanceTopology&Version=2016-11-15";
    assert_eq!(ask(&account, "ec2", topology).await.0, 200);
    let tags = json!({"Resources": ["i-00000000000000000"], "Tags": [{"Key": "a", "Value": "b"}]});
    let refused = account.call("ec2", "create_tags", tags).await.unwrap_err();
    assert!(refused.to_string().contains("InvalidInstanceID.NotFound"), "{refused}");

    let subnets = json!({"Name": "web", "Type": "network", "Subnets": [account.id("PUBLIC_A")]});
    let made = account.call("v2", "create_load_balancer", subnets).await.unwrap();
    let balancer = made["LoadBalancers"][0]["LoadBalancerArn"].clone();
    assert!(balancer.as_str().unwrap().contains("loadbalancer/net/web"), "{balancer}");
    let group = json!({"Name": "web", "Protocol": "TCP", "Port": 80, "VpcId": account.id("VPC")});
    let made = account.call("v2", "create_target_group", group).await.unwrap();
    let group = made["TargetGroups"][0]["TargetGroupArn"].clone();
    let listener = json!({
        "LoadBalancerArn": balancer, "Protocol": "TCP", "Port": 80,
        "DefaultActions": [{"Type": "forward", "TargetGroupArn": group}],
    });
    account.call("v2", "create_listener", listener.clone()).await.unwrap();
    let twice = account.call("v2", "create_listener", listener).await.unwrap_err();
    assert!(twice.to_string().contains("DuplicateListener"), "{twice}");
    let (dump, _) = account.dump(&json!({"web": "web"})).await.unwrap();
    assert_eq!(dump["v2"][0]["listeners"][0]["name"], "TCP:80", "{dump}");
}
