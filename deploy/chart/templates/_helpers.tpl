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
  {{- if .Values.dryRun -}}
    {{- include "ccm.merge" (list .Values (dict "kind" "Deployment" "hostNetworking" false)) -}}
  {{- end -}}
  {{- include "ccm.merge" (list .Values (.Files.Get (printf "clouds/%s.yaml" .Values.cloud) | fromYaml)) -}}
  {{- range $label, $value := .Values.nodeSelector -}}
    {{- if kindIs "invalid" $value -}}{{- $_ := unset $.Values.nodeSelector $label -}}{{- end -}}
  {{- end -}}
  {{- if and .Values.cloudConfig .Values.fixed.cloudConfigIsYaml -}}
    {{- fail (printf "cloudConfig: the config file of %s is YAML without sections; write it as text to cloudConfigContents" .Values.cloud) -}}
  {{- end -}}
  {{- if not (hasKey .Values.secret "enabled") -}}
    {{- $own := and (not .Values.secret.create) (not (include "ccm.flag" (list .Values.args "cloud-config"))) -}}
    {{- $_ := set .Values.secret "enabled" (or .Values.cloudConfig .Values.cloudConfigContents $own | empty | not) -}}
  {{- end -}}
  {{- if .Values.dryRun -}}
    {{- range list "nameOverride" "clusterRoleName" "serviceAccountName" "roleBindingName" -}}
      {{- $_ := set $.Values . (printf "%s-dry-run" (get $.Values .)) -}}
    {{- end -}}
    {{- if .Values.secret.create -}}
      {{- $_ := set .Values.secret "name" (printf "%s-dry-run" .Values.secret.name) -}}
    {{- end -}}
  {{- end -}}
  {{- $args := include "ccm.args" . | fromYamlArray -}}
  {{- $_ := set .Values "args" $args -}}
  {{- $_ := set .Values "securePort" (include "ccm.flag" (list $args "secure-port") | default "10258" | int) -}}
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
  (list "cluster-name" (empty (.Values.cluster).name | ternary "" "$(CLUSTER_NAME)"))
  (list "controllers" (join "," .Values.enabledControllers))
  (list "v" .Values.logVerbosityLevel)
  (list "secure-port" .Values.securePort)
  (list "bind-address" $bind)
  (list "configure-cloud-routes" (and .Values.fixed.routesNeedCidr (not $cidr) | empty | ternary "" "false"))
  (list "dry-run" (.Values.dryRun | ternary "true" "")) -}}
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
{{- .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ccm.namespace" -}}
{{- .Values.namespace | default .Release.Namespace -}}
{{- end -}}

{{- define "ccm.selector" -}}
{{- tpl .Values.fixed.selector . -}}
{{- end -}}

{{/* Labels and annotations of every object. */}}
{{- define "ccm.labels" -}}
labels:
  app.kubernetes.io/name: {{ .Chart.Name }}
  app.kubernetes.io/instance: {{ .Release.Name }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "ccm.metadata" -}}
{{ include "ccm.labels" . }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "ccm.image" -}}
{{- $repository := .Values.image.repository -}}
{{- if not $repository -}}
  {{- fail "image.repository: missing; write the repository to which you pushed the image of this program, such as registry.example/cloud-controller-manager" -}}
{{- end -}}
{{- range $path, $_ := .Files.Glob "clouds/*.yaml" -}}
  {{- range (get ($.Files.Get $path | fromYaml) "fixed").goImages -}}
    {{- if hasSuffix . $repository -}}
      {{- fail (printf "image.repository: %s is the image of the Go program, which this chart does not start; remove image.repository and image.tag from your values, or write the repository that has the image of this program" $repository) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default (printf "v%s-%s" .Chart.AppVersion .Values.cloud) }}
{{- end -}}
{{- end -}}

{{/* cloud.conf. Numbers of YAML are floats: large ones must not get an exponent. */}}
{{- define "ccm.cloudConfig" -}}
{{- if .Values.cloudConfigContents -}}
{{ .Values.cloudConfigContents }}
{{- else -}}
{{- range $section := list "global" "networking" "loadBalancer" "blockStorage" "metadata" "route" }}
{{- with get ($.Values.cloudConfig | default dict) $section }}
[{{ title $section }}]
{{- range $key, $values := . }}
{{- range (kindIs "slice" $values | ternary $values (list $values)) }}
{{- $value := . -}}
{{- if kindIs "float64" . -}}{{- if eq (float64 (int64 .)) . -}}{{- $value = int64 . -}}{{- end -}}{{- end }}
{{ $key }} = {{ $value | quote }}
{{- end }}
{{- end }}
{{ end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The rules of deploy/ for one kind: (list context file kind). */}}
{{- define "ccm.rules" -}}
{{- $context := index . 0 -}}
{{- $kind := index . 2 -}}
{{- range splitList "\n---\n" ($context.Files.Get (printf "files/%s" (index . 1))) -}}
  {{- $object := fromYaml . -}}
  {{- if eq $object.kind $kind -}}
    {{- toYaml $object.rules -}}
  {{- end -}}
{{- end -}}
{{- end -}}
