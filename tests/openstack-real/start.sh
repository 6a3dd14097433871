#!/bin/bash
# Configure (first time) and start everything on 127.0.0.1. Idempotent: running services continue.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
t0=$SECONDS; started=$(date +%s)
mkdir -p "$D"/{etc,run,log,db,rabbit,state}
if [ -z "${OSREAL_PORT_OFFSET:-}" ]; then choose_offset; set_ports; fi
echo "$OSREAL_PORT_OFFSET" >"$D/port-offset"
say() { printf '[%3ds] %s\n' $((SECONDS-t0)) "$*"; }
export PATH="$VENV/bin:$PATH" PYTHONPATH="$D/shim" PYTHONWARNINGS=ignore
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY all_proxy ALL_PROXY

run() { # run NAME command... : background, own session, pid recorded
  local n=$1; shift
  alive "$n" && return 0
  setsid "$@" >>"$D/log/$n.out" 2>&1 </dev/null &
  echo $! >"$D/run/$n.pid"
}
wait_for() { # wait_for NAME SECONDS command...
  local n=$1 s=$2 end=$((SECONDS+$2)); shift 2
  until "$@" >/dev/null 2>&1; do
    if ! alive "$n"; then echo "$n died; see $D/log/$n.*" >&2; tail -n 20 "$D/log/$n".out >&2; exit 1; fi
    [ $SECONDS -lt $end ] || { echo "$n not ready after $s s; see $D/log/$n.*" >&2; exit 1; }
    sleep 0.3
  done
  say "$n ready"
}
get() { curl -sS --noproxy '*' -o /dev/null -m 5 "http://$HOST:$1/"; }
http() { mine "$1" "$2" && get "$2"; }   # our own process listens there, and answers
api() { # api NAME PORT MODULE ARGV [ENV=..]...
  local n=$1 p=$2 m=$3 a=$4; shift 4
  run "$n" env "$@" OSREAL_APP="$m" OSREAL_ARGV="$a" gunicorn --chdir "$D/run" \
    --bind "$HOST:$p" --workers 1 --worker-class gthread --threads "$OSREAL_THREADS" \
    --access-logfile "$D/log/$n.access" --access-logformat '%(t)s %(m)s %(U)s?%(q)s %(s)s %(D)sus "%(a)s"' \
    --keep-alive 75 --timeout 120 --graceful-timeout 5 osreal_wsgi:application
}

# ---------------------------------------------------------------- ports: refuse to run if another process uses one of them
clash=0
for np in keystone:$P_KEYSTONE placement:$P_PLACEMENT glance:$P_GLANCE neutron:$P_NEUTRON nova:$P_NOVA octavia:$P_OCTAVIA rabbit:$P_RABBIT rabbit:$P_DIST epmd:$P_EPMD; do
  if [ -n "$(ss -Hltn "sport = :${np#*:}")" ] && ! mine "${np%:*}" "${np#*:}"; then
    echo "port ${np#*:} (${np%:*}) is taken by another process: set OSREAL_PORT_OFFSET" >&2; clash=1
  fi
done
[ $clash = 0 ] || exit 1

# ---------------------------------------------------------------- shim (our own small modules)
mkdir -p "$D/shim/osreal_shim-1.0.dist-info"
cp "$OSREAL_SRC"/shim/*.py "$D/shim/"
printf 'Metadata-Version: 2.1\nName: osreal-shim\nVersion: 1.0\n' >"$D/shim/osreal_shim-1.0.dist-info/METADATA"
printf '[neutron.ml2.mechanism_drivers]\nosreal = osreal_ml2:InstantMechanismDriver\n' >"$D/shim/osreal_shim-1.0.dist-info/entry_points.txt"

# ---------------------------------------------------------------- MariaDB (unix socket only)
if [ ! -d "$D/db/mysql" ]; then
  mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$D/db" --auth-root-authentication-method=normal --skip-test-db >"$D/log/mariadb-install.out" 2>&1
fi
run mariadb mariadbd --no-defaults --user="$(id -un)" --datadir="$D/db" --socket="$D/run/mysql.sock" \
  --skip-networking --pid-file="$D/db/mariadbd.pid" --max-connections=1000 --innodb-buffer-pool-size=256M \
  --innodb-flush-log-at-trx-commit=0 --sync-binlog=0 --skip-log-bin --skip-name-resolve \
  --character-set-server=utf8mb3 --collation-server=utf8mb3_general_ci
# ---------------------------------------------------------------- RabbitMQ
export RABBITMQ_NODENAME=osreal@localhost RABBITMQ_NODE_IP_ADDRESS=$HOST RABBITMQ_NODE_PORT=$P_RABBIT \
  RABBITMQ_DIST_PORT=$P_DIST ERL_EPMD_ADDRESS=$HOST ERL_EPMD_PORT=$P_EPMD RABBITMQ_MNESIA_BASE="$D/rabbit/mnesia" \
  RABBITMQ_LOG_BASE="$D/log/rabbit" RABBITMQ_PID_FILE="$D/rabbit/rabbit.pid" RABBITMQ_ENABLED_PLUGINS_FILE="$D/rabbit/enabled_plugins" \
  RABBITMQ_CONFIG_FILE="$D/rabbit/rabbitmq.conf" RABBITMQ_CONF_ENV_FILE="$D/rabbit/env.conf" \
  RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none"
mkdir -p "$D/log/rabbit" "$D/rabbit/mnesia" "$D/rabbit/home"; echo '[].' >"$D/rabbit/enabled_plugins"; : >"$D/rabbit/env.conf"; : >"$D/rabbit/rabbitmq.conf"
alive epmd || run epmd env HOME="$D/rabbit/home" epmd -address "$HOST" -port "$P_EPMD"
# In a folder of its own, because a node that ends early writes a dump of its tables there.
run rabbit env --chdir="$D/rabbit" HOME="$D/rabbit/home" /usr/lib/rabbitmq/bin/rabbitmq-server

wait_for mariadb 60 sqlroot -e 'select 1'
if [ ! -f "$D/run/.db" ]; then
  for d in keystone placement glance neutron nova_api nova nova_cell0 octavia; do echo "create database if not exists $d;"; done | sqlroot
  touch "$D/run/.db"
fi

# ---------------------------------------------------------------- configuration
authtoken() { # authtoken SECTION
  cat <<C
[$1]
auth_type = password
auth_url = $AUTH_URL
www_authenticate_uri = $AUTH_URL
username = svc
password = $SVC_PASS
project_name = service
user_domain_name = Default
project_domain_name = Default
region_name = $REGION
C
}
common() { # common NAME
  mkdir -p "$D/state/$1"
  cat <<C
[DEFAULT]
debug = ${OSREAL_DEBUG:-False}
log_file = $D/log/$1.log
use_stderr = False
transport_url = $MQ
state_path = $D/state/$1
C
}
tailconf() { # tailconf NAME
  cat <<C
[oslo_concurrency]
lock_path = $D/state/$1/lock
[oslo_messaging_notifications]
driver = noop
[oslo_messaging_rabbit]
rabbit_quorum_queue = False
heartbeat_timeout_threshold = 0
C
}
E="$D/etc"
{ common keystone; cat <<C
public_endpoint = http://$HOST:$P_KEYSTONE/
[database]
connection = $(dburl keystone)
[token]
provider = fernet
expiration = 86400
[fernet_tokens]
key_repository = $E/fernet-keys
[credential]
key_repository = $E/credential-keys
# Without a cache a token check costs about 450 queries and half a second, and each service checks each new token. The
# cache belongs to the one process, and changes of a token's validity clear it.
[cache]
enabled = True
backend = dogpile.cache.memory
[identity]
password_hash_rounds = 4
C
tailconf keystone; } >"$E/keystone.conf"

mkdir -p "$E/placement"
{ common placement; cat <<C
[api]
auth_strategy = keystone
[placement_database]
connection = $(dburl placement)
C
authtoken keystone_authtoken; tailconf placement; } >"$E/placement/placement.conf"

mkdir -p "$E/glance" "$D/state/glance/images" "$D/state/glance/os_glance_staging_store" "$D/state/glance/os_glance_tasks_store"
{ common glance; cat <<C
enabled_backends = local:file
node_staging_uri = file://$D/state/glance/os_glance_staging_store
enable_v1_api = False
[glance_store]
default_backend = local
[local]
filesystem_store_datadir = $D/state/glance/images
[os_glance_staging_store]
filesystem_store_datadir = $D/state/glance/os_glance_staging_store
[os_glance_tasks_store]
filesystem_store_datadir = $D/state/glance/os_glance_tasks_store
[database]
connection = $(dburl glance)
[paste_deploy]
flavor = keystone
config_file = $VENV/etc/glance/glance-api-paste.ini
C
authtoken keystone_authtoken; tailconf glance; } >"$E/glance/glance-api.conf"

{ common neutron; cat <<C
core_plugin = ml2
service_plugins = router
api_paste_config = $VENV/etc/neutron/api-paste.ini
dhcp_agent_notification = False
notify_nova_on_port_status_changes = True
notify_nova_on_port_data_changes = True
send_events_interval = 1
max_routes = 1000
l3_ha = False
[ml2]
type_drivers = flat,vlan,vxlan
project_network_types = vxlan
mechanism_drivers = osreal
extension_drivers = port_security
[ml2_type_flat]
flat_networks = *
[ml2_type_vxlan]
vni_ranges = 1:20000
[quotas]
default_quota = -1
quota_network = -1
quota_subnet = -1
quota_port = -1
quota_router = -1
quota_floatingip = -1
quota_security_group = -1
quota_security_group_rule = -1
[database]
connection = $(dburl neutron)
C
authtoken keystone_authtoken; authtoken nova; tailconf neutron; } >"$E/neutron.conf"

nova_conf() { # nova_conf STATE HOSTNAME db|nodb (a compute service must have no database access)
  common "$1"; cat <<C
host = $2
my_ip = $HOST
compute_driver = fake.FakeDriverWithoutFakeNodes
periodic_fuzzy_delay = 0
report_interval = 3
service_down_time = 20
vif_plugging_is_fatal = False
vif_plugging_timeout = 0
sync_power_state_interval = -1
default_floating_pool = public
[api]
auth_strategy = keystone
[wsgi]
api_paste_config = $VENV/etc/nova/api-paste.ini
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 5
[conductor]
workers = 1
[filter_scheduler]
track_instance_changes = False
[quota]
instances = -1
cores = -1
ram = -1
server_groups = -1
server_group_members = -1
key_pairs = -1
[vnc]
enabled = False
[glance]
region_name = $REGION
[oslo_policy]
enforce_scope = True
C
  if [ "$3" = db ]; then printf '[api_database]\nconnection = %s\n[database]\nconnection = %s\n' "$(dburl nova_api)" "$(dburl nova)"; fi
  authtoken keystone_authtoken; authtoken placement; authtoken neutron
  authtoken service_user; echo 'send_service_user_token = True'
  tailconf "$1"
}
nova_conf nova osreal db >"$E/nova.conf"
for i in $(seq 1 "$OSREAL_COMPUTES"); do nova_conf "nova-compute-$i" "osreal-cmp$i" nodb >"$E/nova-compute-$i.conf"; done

# ---------------------------------------------------------------- schemas (first run)
once() { local m="$D/run/.once-$1"; shift; [ -f "$m" ] && return 0; "$@" && touch "$m"; }
dbsync_keystone() {
  keystone-manage --config-file "$E/keystone.conf" db_sync
  keystone-manage --config-file "$E/keystone.conf" fernet_setup --keystone-user "$(id -un)" --keystone-group "$(id -gn)"
  keystone-manage --config-file "$E/keystone.conf" credential_setup --keystone-user "$(id -un)" --keystone-group "$(id -gn)"
  keystone-manage --config-file "$E/keystone.conf" bootstrap --bootstrap-password "$ADMIN_PASS" --bootstrap-username admin \
    --bootstrap-project-name admin --bootstrap-role-name admin --bootstrap-service-name keystone --bootstrap-region-id "$REGION" \
    --bootstrap-public-url "$AUTH_URL" --bootstrap-internal-url "$AUTH_URL" --bootstrap-admin-url "$AUTH_URL"
}
dbsync_nova() {
  nova-manage --config-file "$E/nova.conf" api_db sync
  nova-manage --config-file "$E/nova.conf" cell_v2 map_cell0 --database_connection "$(dburl nova_cell0)"
  nova-manage --config-file "$E/nova.conf" cell_v2 create_cell --name cell1 --transport-url "$MQ" --database_connection "$(dburl nova)" || [ $? = 2 ]
  nova-manage --config-file "$E/nova.conf" db sync
}
{ once keystone dbsync_keystone; } >>"$D/log/dbsync-keystone.out" 2>&1 || { tail "$D/log/dbsync-keystone.out"; exit 1; }
say "keystone schema"
api keystone "$P_KEYSTONE" keystone.wsgi.api keystone OS_KEYSTONE_CONFIG_FILES="$E/keystone.conf"
( once placement env OS_PLACEMENT_CONFIG_DIR="$E/placement" placement-manage --config-file "$E/placement/placement.conf" db sync
  once glance glance-manage --config-file "$E/glance/glance-api.conf" db_sync
  once nova dbsync_nova ) >>"$D/log/dbsync-a.out" 2>&1 & pa=$!
( once neutron neutron-db-manage --config-file "$E/neutron.conf" upgrade head
  printf '[database]\nconnection = %s\n' "$(dburl octavia)" >"$E/octavia-db.conf"
  once octavia octavia-db-manage --config-file "$E/octavia-db.conf" upgrade head ) >>"$D/log/dbsync-b.out" 2>&1 & pb=$!
wait_for keystone 60 http keystone "$P_KEYSTONE"
once services python "$OSREAL_SRC/cloud.py" services
wait $pa || { tail "$D/log/dbsync-a.out"; exit 1; }
wait $pb || { tail "$D/log/dbsync-b.out"; exit 1; }
say "all schemas"

# ---------------------------------------------------------------- services
api placement "$P_PLACEMENT" placement.wsgi.api placement OS_PLACEMENT_CONFIG_DIR="$E/placement"
api glance "$P_GLANCE" glance.wsgi.api glance OS_GLANCE_CONFIG_DIR="$E/glance"
api neutron "$P_NEUTRON" neutron.wsgi.api neutron OS_NEUTRON_CONFIG_DIR="$E" OS_NEUTRON_CONFIG_FILES=neutron.conf
wait_for rabbit 90 mine rabbit "$P_RABBIT"
run nova-conductor nova-conductor --config-file "$E/nova.conf" --log-file "$D/log/nova-conductor.log"
run nova-scheduler nova-scheduler --config-file "$E/nova.conf" --log-file "$D/log/nova-scheduler.log"
api nova "$P_NOVA" nova.wsgi.osapi_compute nova-api OS_NOVA_CONFIG_DIR="$E" OS_NOVA_CONFIG_FILES="$VENV/etc/nova/api-paste.ini;nova.conf"
wait_for neutron 120 http neutron "$P_NEUTRON"
wait_for nova 120 http nova "$P_NOVA"
wait_for glance 60 http glance "$P_GLANCE"
for i in $(seq 1 "$OSREAL_COMPUTES"); do run "nova-compute-$i" nova-compute --config-file "$E/nova-compute-$i.conf"; done

# ---------------------------------------------------------------- octavia: real API + worker, amphora agent replaced by octavia's own no-op driver
once infra python "$OSREAL_SRC/cloud.py" infra "$D/run/infra.env"
python "$OSREAL_SRC/cloud.py" compute "$OSREAL_COMPUTES" "$started"; say "nova services reporting, compute hosts mapped"
. "$D/run/infra.env"    # MGMT_NET MGMT_SG SERVICE_PROJECT
mkdir -p "$E/certs"
[ -f "$E/certs/ca.pem" ] || openssl req -x509 -newkey rsa:2048 -passout pass:osreal -keyout "$E/certs/ca.key" -out "$E/certs/ca.pem" \
  -days 3650 -subj /CN=osreal-amphora-ca >"$D/log/openssl.out" 2>&1
{ common octavia; cat <<C
[api_settings]
bind_host = $HOST
bind_port = $P_OCTAVIA
auth_strategy = keystone
enabled_provider_drivers = amphora:amphora with no-op agent,octavia:alias of amphora
default_provider_driver = amphora
healthcheck_enabled = True
[database]
connection = $(dburl octavia)
[oslo_messaging]
topic = octavia_prov
[certificates]
ca_certificate = $E/certs/ca.pem
ca_private_key = $E/certs/ca.key
ca_private_key_passphrase = osreal
server_certs_key_passphrase = insecure-key-do-not-use-this-key
[controller_worker]
workers = 1
client_ca = $E/certs/ca.pem
amphora_driver = amphora_noop_driver
compute_driver = compute_nova_driver
network_driver = allowed_address_pairs_driver
image_driver = image_glance_driver
volume_driver = volume_noop_driver
loadbalancer_topology = SINGLE
amp_flavor_id = amphora
amp_image_tag = amphora
amp_image_owner_id = $SERVICE_PROJECT
amp_boot_network_list = $MGMT_NET
amp_secgroup_list = $MGMT_SG
amp_active_retries = 60
amp_active_wait_sec = 1
[networking]
retry_interval = 1
port_detach_timeout = 10
[health_manager]
heartbeat_key = osreal
[task_flow]
jobboard_enabled = False
C
authtoken keystone_authtoken; authtoken service_auth; tailconf octavia; } >"$E/octavia.conf"
run octavia-worker octavia-worker --config-file "$E/octavia.conf" --log-file "$D/log/octavia-worker.log"
api octavia "$P_OCTAVIA" octavia.wsgi.api "octavia-api --config-file $E/octavia.conf"
wait_for octavia 60 http octavia "$P_OCTAVIA"
for f in "$D"/run/*.pid; do n=$(basename "$f" .pid); alive "$n" || { echo "$n is not running; see $D/log/$n.*" >&2; exit 1; }; done
say "cloud up: OS_AUTH_URL=$AUTH_URL (clouds.yaml: $D/clouds.yaml, cloud 'admin')"
