{{- define "concertina.name" -}}
{{- if contains "concertina" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-concertina" .Release.Name }}{{ end }}
{{- end }}
