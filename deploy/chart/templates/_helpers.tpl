{{/* Adds missing defaults to a map: (list map defaults). */}}
{{- define "ccm.merge" -}}
{{- $values := index . 0 -}}
{{- range $key, $default := index . 1 -}}
  {{- if not (hasKey $values $key) -}}
    {{- $_ := set $values $key $default -}}
  {{- else if and (kindIs "map" $default) (kindIs "map" (get $values $key)) -}}
    {{- include "ccm.merge" (list (get $values $key) $default) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Completes .Values for the cloud, once, and refuses values that the schema cannot describe. Every template begins with it. */}}
{{- define "ccm.prepare" -}}
{{- if not (hasKey .Values "prepared") -}}
  {{- $_ := set .Values "prepared" true -}}
  {{- if not (hasKey .Values "dryRun") -}}
    {{- fail "dryRun: missing, so the defaults of this chart are missing; with --reuse-values, helm takes over the defaults of the other chart: use --reset-then-reuse-values" -}}
  {{- end -}}
  {{- $_ := and .Values.workload.create (.Values.kubeconfig).secretName | empty | not | set .Values "hosted" -}}
  {{- if and (eq .Values.cloud "azure") (or .Values.infra .Values.cloudControllerManager) -}}
    {{- include "ccm.azureUpstream" . -}}
  {{- end -}}
  {{- include "ccm.placement" . -}}
  {{- include "ccm.config" . -}}
  {{- if .Values.dryRun -}}
    {{- range $value, $length := dict "nameOverride" 55 "fullnameOverride" 55 "clusterRoleName" 253 "roleBindingName" 253 -}}
      {{- with get $.Values $value -}}
        {{- $_ := set $.Values $value (trunc $length . | trimSuffix "-" | printf "%s-dry-run") -}}
      {{- end -}}
    {{- end -}}
    {{- if .Values.serviceAccount.create -}}
      {{- $_ := set .Values "serviceAccountName" (printf "%s-dry-run" .Values.serviceAccountName) -}}
    {{- end -}}
    {{- if .Values.secret.create -}}
      {{- $_ := set .Values.secret "name" (printf "%s-dry-run" .Values.secret.name) -}}
    {{- end -}}
  {{- end -}}
  {{- $args := include "ccm.args" . | fromYamlArray -}}
  {{- $_ := set .Values "args" $args -}}
  {{- $port := include "ccm.flag" (list $args "secure-port") | default "10258" | int -}}
  {{- $_ := set .Values "securePort" $port -}}
  {{- $_ := set .Values "givenPort" $port -}}
  {{- if and $port .Values.dryRun .Values.hostNetworking -}}
    {{- /* The program in charge uses the port of these values on the same network. */ -}}
    {{- $_ := gt $port 65525 | ternary (sub $port 10) (add $port 10) | int | set .Values "securePort" -}}
    {{- $_ := append $args (printf "--secure-port=%d" .Values.securePort) | set .Values "args" -}}
  {{- end -}}
  {{- if and (not .Values.securePort) (or (.Values.serviceMonitor).enabled (.Values.podMonitor).enabled) -}}
    {{- fail "securePort: 0 switches the port off that serviceMonitor and podMonitor read; write another port, or disable them" -}}
  {{- end -}}
  {{- if and (has (include "ccm.flag" (list $args "leader-elect")) (list "false" "False" "FALSE" "f" "F" "0")) (eq .Values.kind "Deployment") (gt (int .Values.replicas) 1) (not .Values.dryRun) -}}
    {{- fail "replicas: without leader election only one replica may run; remove --leader-elect=false, or write replicas: 1" -}}
  {{- end -}}
  {{- $bind := include "ccm.flag" (list $args "bind-address") | trimAll "[]" -}}
  {{- $_ := set .Values "bindAddress" (has $bind (list "" "0.0.0.0" "::") | ternary "" $bind) -}}
  {{- if and (has $bind (list "127.0.0.1" "::1" "localhost")) (not .Values.hostNetworking) .Values.securePort -}}
    {{- fail (printf "bindAddress: the kubelet cannot reach the probes on %s without the host network; write bindAddress: 0.0.0.0, or hostNetworking: true" $bind) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Completes the values that say where the Pods run: beside the API server that they use, or in a management cluster. */}}
{{- define "ccm.placement" -}}
{{- $selectorIsNull := and (hasKey .Values "nodeSelector") (kindIs "invalid" .Values.nodeSelector) -}}
{{- $affinityIsNull := and (hasKey .Values "affinity") (kindIs "invalid" .Values.affinity) -}}
{{- if .Values.dryRun -}}
  {{- include "ccm.merge" (list .Values (dict "kind" "Deployment" "hostNetworking" false "replicas" 1)) -}}
{{- end -}}
{{- if .Values.hosted -}}
  {{- include "ccm.merge" (list .Values (.Files.Get "defaults/hosted.yaml" | fromYaml)) -}}
{{- end -}}
{{- include "ccm.merge" (list .Values (.Files.Get (printf "clouds/%s.yaml" .Values.cloud) | fromYaml)) -}}
{{- include "ccm.merge" (list .Values (.Files.Get "defaults/cluster.yaml" | fromYaml)) -}}
{{- $onControlPlane := and .Values.fixed.runsOnControlPlane (not .Values.hosted) (not $selectorIsNull) (not $affinityIsNull) -}}
{{- $role := "node-role.kubernetes.io/control-plane" -}}
{{- if and $onControlPlane (not (hasKey (.Values.nodeSelector | default dict) $role)) -}}
  {{- /* kubeadm sets the value "", and k3s, RKE2 and k0s set "true". */ -}}
  {{- $exists := dict "matchExpressions" (list (dict "key" $role "operator" "Exists")) -}}
  {{- $nodes := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" (list $exists)) -}}
  {{- $affinity := .Values.affinity | default dict -}}
  {{- if not (hasKey $affinity "nodeAffinity") -}}
    {{- $_ := set $affinity "nodeAffinity" $nodes -}}
  {{- end -}}
  {{- $_ := set .Values "affinity" $affinity -}}
{{- end -}}
{{- range $label, $value := .Values.nodeSelector -}}
  {{- if kindIs "invalid" $value -}}{{- $_ := unset $.Values.nodeSelector $label -}}{{- end -}}
{{- end -}}
{{- if and (not .Values.serviceAccountName) .Values.serviceAccount.create -}}
  {{- $_ := set .Values "serviceAccountName" "cloud-controller-manager" -}}
{{- end -}}
{{- end -}}

{{/* Completes the values of the config file: which keys are ignored, whether there is a Secret, and which files of the host it needs. */}}
{{- define "ccm.config" -}}
{{- $ignored := list -}}
{{- range $section, $_ := .Values.cloudConfig -}}
  {{- if not (has $section (include "ccm.sections" . | fromYamlArray)) -}}
    {{- $ignored = append $ignored (printf "cloudConfig.%s" $section) -}}
  {{- end -}}
{{- end -}}
{{- $_ := set .Values "ignored" $ignored -}}
{{- $fromKeys := include "ccm.renderSections" . -}}
{{- if and $fromKeys .Values.fixed.cloudConfigIsYaml -}}
  {{- fail (printf "cloudConfig: the config file of %s is YAML without sections; write it as text to cloudConfigContents" .Values.cloud) -}}
{{- end -}}
{{- if and $fromKeys .Values.cloudConfigContents -}}
  {{- fail "cloudConfigContents: cloudConfig has keys, too, and only one of the two can be the config file; remove one of them" -}}
{{- end -}}
{{- $config := include "ccm.cloudConfig" . -}}
{{- if not (hasKey .Values.secret "enabled") -}}
  {{- $own := and (not .Values.secret.create) (not (include "ccm.flag" (list .Values.args "cloud-config"))) -}}
  {{- $_ := set .Values.secret "enabled" (or $config $own | empty | not) -}}
{{- end -}}
{{- /* Files of the host are mounted if the config may name one: it does, or it is in a Secret that the chart cannot read. */ -}}
{{- with .Values.fixed.hostFiles -}}
  {{- $isKnown := and $.Values.secret.enabled $.Values.secret.create -}}
  {{- $named := list $config $.Values.args $.Values.controllerExtraArgs $.Values.env $.Values.extraEnv | toJson | contains . -}}
  {{- if and (or $named (not $isKnown)) (not $.Values.hosted) -}}
    {{- $volume := dict "name" "k8s-certs" "hostPath" (dict "path" .) -}}
    {{- $mount := dict "name" "k8s-certs" "mountPath" . "readOnly" true -}}
    {{- include "ccm.merge" (list $.Values (dict "extraVolumes" (list $volume) "extraVolumeMounts" (list $mount))) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* The value of a flag, which may be an item of its own, "true" if it has none: (list args name). */}}
{{- define "ccm.flag" -}}
{{- $flag := printf "--%s" (index . 1) -}}
{{- $value := "" -}}
{{- $previous := "" -}}
{{- range index . 0 -}}
  {{- /* -v=4 is --v=4. */ -}}
  {{- $item := regexReplaceAll "^-([a-z])(=|$)" . "--${1}${2}" -}}
  {{- if eq $item $flag -}}
    {{- $value = "true" -}}
  {{- else if hasPrefix (printf "%s=" $flag) $item -}}
    {{- $value = trimPrefix (printf "%s=" $flag) $item -}}
  {{- else if and (eq $previous $flag) (not (hasPrefix "-" $item)) -}}
    {{- $value = $item -}}
  {{- end -}}
  {{- $previous = $item -}}
{{- end -}}
{{- $value -}}
{{- end -}}

{{/* All arguments, as a YAML list. Flags of `args` and `controllerExtraArgs` are not set again. */}}
{{- define "ccm.args" -}}
{{- $args := list -}}
{{- range .Values.args -}}
  {{- $args = append $args (toString .) -}}
{{- end -}}
{{- $extra := list -}}
{{- $more := .Values.controllerExtraArgs -}}
{{- if kindIs "string" $more -}}
  {{- $text := tpl $more . -}}
  {{- $more = fromYamlArray $text -}}
  {{- if and $more (hasPrefix "error " (first $more | toString)) -}}
    {{- fail (printf "controllerExtraArgs: not a YAML list (%s); write one line \"- --flag=value\" for each argument" (first $more)) -}}
  {{- end -}}
{{- end -}}
{{- range $more -}}
  {{- $extra = append $extra (toString .) -}}
{{- end -}}
{{- $bind := .Values.bindAddress -}}
{{- if and (not $bind) .Values.fixed.bindsToLoopback .Values.hostNetworking -}}
  {{- $bind = or (.Values.serviceMonitor).enabled (.Values.podMonitor).enabled | empty | ternary "127.0.0.1" "0.0.0.0" -}}
{{- end -}}
{{- $given := concat $args $extra -}}
{{- $cidr := include "ccm.flag" (list $given "cluster-cidr") -}}
{{- $ours := list
  (list "cloud-provider" .Values.cloud)
  (list "cloud-config" (or .Values.secret.enabled .Values.fixed.needsConfig | empty | not | ternary "$(CLOUD_CONFIG)" ""))
  (list "cluster-name" (or (.Values.cluster).name .Values.fixed.passesEmptyClusterName | empty | ternary "" "$(CLUSTER_NAME)"))
  (list "controllers" (join "," .Values.enabledControllers))
  (list "v" .Values.logVerbosityLevel)
  (list "secure-port" .Values.securePort)
  (list "bind-address" $bind)
  (list "configure-cloud-routes" (and .Values.fixed.routesNeedCidr (not $cidr) | empty | ternary "" "false"))
  (list "dry-run" (.Values.dryRun | ternary "true" "")) -}}
{{- if .Values.hosted -}}
  {{- range list "kubeconfig" "authentication-kubeconfig" "authorization-kubeconfig" -}}
    {{- $ours = append $ours (list . (printf "/etc/hosted/%s" ($.Values.kubeconfig.key | default "value"))) -}}
  {{- end -}}
{{- end -}}
{{- range $ours -}}
  {{- $value := index . 1 -}}
  {{- if kindIs "float64" $value -}}{{- $value = int64 $value -}}{{- end -}}
  {{- if and (ne (toString $value) "") (not (kindIs "invalid" $value)) (not (include "ccm.flag" (list $given (first .)))) -}}
    {{- $args = append $args (printf "--%s=%v" (first .) $value) -}}
  {{- end -}}
{{- end -}}
{{- concat $args $extra | toYaml -}}
{{- end -}}

{{- define "ccm.name" -}}
{{- .Values.fullnameOverride | default .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ccm.namespace" -}}
{{- .Values.namespace | default .Release.Namespace -}}
{{- end -}}

{{- define "ccm.selector" -}}
{{- tpl .Values.fixed.selector . -}}
{{- end -}}

{{/* Labels of an object: (list context labels...). Later ones win. */}}
{{- define "ccm.labels" -}}
{{- $context := index . 0 -}}
{{- $labels := dict
  "app.kubernetes.io/name" $context.Chart.Name
  "app.kubernetes.io/instance" $context.Release.Name
  "app.kubernetes.io/version" $context.Chart.AppVersion
  "app.kubernetes.io/managed-by" $context.Release.Service
  "helm.sh/chart" (printf "%s-%s" $context.Chart.Name $context.Chart.Version | replace "+" "_") -}}
{{- range prepend (rest .) $context.Values.commonLabels -}}
  {{- $labels = merge (dict) (. | default dict) $labels -}}
{{- end -}}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- end -}}

{{/* Labels of the Pods: those of every chart, those of the user, and the selector, which no value changes. */}}
{{- define "ccm.podLabels" -}}
{{- $names := dict "app.kubernetes.io/name" .Chart.Name "app.kubernetes.io/instance" .Release.Name -}}
{{- merge (dict) (include "ccm.selector" . | fromYaml) (.Values.podLabels | default dict) (.Values.commonLabels | default dict) $names | toYaml -}}
{{- end -}}

{{- define "ccm.metadata" -}}
{{ include "ccm.labels" (list .) }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The security context of the Pods. Where a container runs as root, runAsNonRoot would keep it from starting. */}}
{{- define "ccm.podSecurityContext" -}}
{{- with .Values.podSecurityContext -}}
  {{- $context := deepCopy . -}}
  {{- $contexts := list . $.Values.securityContext -}}
  {{- range $.Values.extraInitContainers -}}
    {{- $contexts = append $contexts .securityContext -}}
  {{- end -}}
  {{- $isRoot := false -}}
  {{- range $contexts -}}
    {{- if eq (toString (. | default dict).runAsUser) "0" -}}{{- $isRoot = true -}}{{- end -}}
  {{- end -}}
  {{- if not (or $isRoot (hasKey $context "runAsNonRoot")) -}}
    {{- $_ := set $context "runAsNonRoot" true -}}
  {{- end -}}
  {{- toYaml $context -}}
{{- end -}}
{{- end -}}

{{/* A probe, completed: (list context value path). A probe of another port is left as it is. */}}
{{- define "ccm.probe" -}}
{{- $context := index . 0 -}}
{{- $port := $context.Values.securePort -}}
{{- $probe := get $context.Values (index . 1) | default dict | deepCopy -}}
{{- $request := dict "path" (index . 2) "port" $port "scheme" "HTTPS" -}}
{{- with $context.Values.bindAddress -}}
  {{- $_ := set $request "host" . -}}
{{- end -}}
{{- if not (or $probe.httpGet $probe.exec $probe.tcpSocket $probe.grpc) -}}
  {{- $_ := ternary (dict "httpGet" $request "periodSeconds" 10 "timeoutSeconds" 5 "failureThreshold" 6) (dict) (ne $port 0) | list $probe | include "ccm.merge" -}}
  {{- if eq $port 0 -}}{{- $probe = dict -}}{{- end -}}
{{- else if and $probe.httpGet $port -}}
  {{- if has (toString $probe.httpGet.port) (list "<nil>" "https" (toString $context.Values.givenPort)) -}}
    {{- $_ := unset $probe.httpGet "port" -}}
    {{- include "ccm.merge" (list $probe.httpGet $request) -}}
  {{- end -}}
{{- end -}}
{{- with $probe -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* How Pods are spread. By default the replicas of a Deployment run on different nodes if they can. */}}
{{- define "ccm.spread" -}}
{{- $constraints := .Values.topologySpreadConstraints -}}
{{- if and (not (hasKey .Values "topologySpreadConstraints")) (eq .Values.kind "Deployment") (gt (int .Values.replicas) 1) -}}
  {{- $constraints = list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway") -}}
{{- end -}}
{{- $selector := dict "labelSelector" (dict "matchLabels" (include "ccm.selector" . | fromYaml)) -}}
{{- range $constraints -}}
  {{- if not (hasKey . "labelSelector") -}}{{- include "ccm.merge" (list . $selector) -}}{{- end -}}
{{- end -}}
{{- with $constraints -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{- define "ccm.image" -}}
{{- $repository := .Values.image.repository -}}
{{- if not $repository -}}
  {{- fail "image.repository: missing; write the repository to which you pushed the image of this program, such as registry.example/cloud-controller-manager" -}}
{{- end -}}
{{- /* A mirror may have images of this program under the path of the Go program. Their tags end with the cloud. */ -}}
{{- $isMirrored := and (.Values.image.tag | toString | hasSuffix (printf "-%s" .Values.cloud)) (not (regexMatch "^((registry\\.k8s|docker|index\\.docker)\\.io|(k8s\\.)?gcr\\.io)/" $repository)) -}}
{{- range $path, $_ := .Files.Glob "clouds/*.yaml" -}}
  {{- range (get ($.Files.Get $path | fromYaml) "fixed").goImages -}}
    {{- if and (hasSuffix . $repository) (or (eq . $repository) (not $isMirrored)) -}}
      {{- fail (printf "image.repository: %s is the image of the Go program, which this chart does not start; remove image.repository and image.tag from your values, or write the repository that has the image of this program, with an image.tag that ends with -%s if it is a mirror" $repository $.Values.cloud) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default (printf "v%s-%s" .Chart.AppVersion .Values.cloud) }}
{{- end -}}
{{- end -}}

{{/* cloud.conf. */}}
{{- define "ccm.cloudConfig" -}}
{{- .Values.cloudConfigContents | default (include "ccm.renderSections" .) -}}
{{- end -}}

{{/* The keys of cloudConfig that are sections. */}}
{{- define "ccm.sections" -}}
[global, networking, loadBalancer, loadBalancerClass, blockStorage, metadata, route, quota, serviceOverride]
{{- end -}}

{{/* The sections of cloudConfig. Those of a kind with names have a map of sections by name. */}}
{{- define "ccm.renderSections" -}}
{{- range $section := include "ccm.sections" . | fromYamlArray -}}
  {{- $content := get ($.Values.cloudConfig | default dict) $section -}}
  {{- if has $section (list "loadBalancerClass" "serviceOverride") -}}
    {{- range $name, $keys := $content | default dict -}}
      {{- include "ccm.renderSection" (list (printf "%s %q" (title $section) $name) $keys) -}}
    {{- end -}}
  {{- else -}}
    {{- include "ccm.renderSection" (list (title $section) $content) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* One section: (list title keys). A key without a value is missing. Numbers of YAML are floats: large ones must not get an exponent. */}}
{{- define "ccm.renderSection" -}}
{{- $lines := list -}}
{{- range $key, $values := index . 1 | default dict -}}
  {{- range (kindIs "slice" $values | ternary $values (list $values)) -}}
    {{- $value := . -}}
    {{- if kindIs "float64" . -}}{{- if eq (float64 (int64 .)) . -}}{{- $value = int64 . -}}{{- end -}}{{- end -}}
    {{- if not (kindIs "invalid" .) -}}
      {{- $lines = append $lines (printf "%s = %s" $key (quote $value)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- with $lines }}
[{{ index $ 0 }}]
{{ join "\n" . }}
{{ end -}}
{{- end -}}

{{/* The rules of a file of this chart for one kind: (list context file kind). A role without rules would take all rights away. */}}
{{- define "ccm.rules" -}}
{{- $context := index . 0 -}}
{{- $file := printf "files/%s" (index . 1) -}}
{{- $kind := index . 2 -}}
{{- $rules := list -}}
{{- range splitList "\n---\n" ($context.Files.Get $file) -}}
  {{- $object := fromYaml . -}}
  {{- if eq (toString $object.kind) $kind -}}
    {{- $rules = concat $rules ($object.rules | default list) -}}
  {{- end -}}
{{- end -}}
{{- if not $rules -}}
  {{- fail (printf "%s: no rules of a %s in this copy of the chart, so the program would lose its rights; copy the folder of the chart again, with the content of this file" $file $kind) -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{/* A file of this chart that is an object with this key: (list context file key). */}}
{{- define "ccm.file" -}}
{{- $context := index . 0 -}}
{{- $file := printf "files/%s" (index . 1) -}}
{{- $text := $context.Files.Get $file -}}
{{- if not (hasKey ($text | fromYaml) (index . 2)) -}}
  {{- fail (printf "%s: no key %q in this copy of the chart; copy the folder of the chart again, with the content of this file" $file (index . 2)) -}}
{{- end -}}
{{- $text -}}
{{- end -}}
