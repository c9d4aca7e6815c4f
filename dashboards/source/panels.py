"""Builders of Grafana's JSON: panels, queries, variables, annotations and links.

Each panel builder requires a title, a description, a unit and thresholds. `dashboard` places the panels on the grid, by
their order and width.
"""

SCHEMA_VERSION = 41
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
TAG = "evenstep"
WIDTH = 24

# Colors with a meaning. Lines of workers get their color by name, so a worker has the same color in all panels.
GREEN, ORANGE, RED, BLUE, PURPLE, GREY = "green", "orange", "red", "blue", "purple", "#8e8e8e"

# Units with SI prefixes and three digits: Grafana chooses the decimals if a panel sets none. The unit of a job's batches
# is in the titles, because Grafana does not replace variables in units.
RATIO, TIMES, SECONDS, BATCH, SPEED, COUNT = "percentunit", "suffix:x", "s", "si:", "si:/s", "none"

# Up to this number of workers, panels have a line for each worker. Above it, they show quantiles and extreme workers.
MANY = 16


def steps(*levels, base=GREEN):
    """Returns thresholds: `base` is the color below the first level; each level is (lowest value, color)."""
    return [{"color": base, "value": None}] + [{"color": color, "value": value} for value, color in levels]


# Thresholds for panels without good or bad values.
PLAIN = steps()


def query(expr, legend="__auto", *, instant=False, table=False, heatmap=False):
    """Returns a Prometheus query, over the selected time range or, with `instant`, at its end."""
    return {
        "datasource": PROMETHEUS,
        "editorMode": "code",
        "expr": " ".join(expr.split()),
        "format": "table" if table else "heatmap" if heatmap else "time_series",
        "instant": instant,
        "legendFormat": legend,
        "range": not instant,
    }


def panel(kind, title, description, unit, queries, options, *, thresholds, width, height, custom=None, mappings=None,
          color="palette-classic-by-name", overrides=(), decimals=None, transformations=(), links=(), lowest=None,
          highest=None, repeat=None, interval=None, nothing=None):
    """Returns a panel of any kind."""
    defaults = {
        "color": {"mode": color},
        "mappings": mappings or [],
        "thresholds": {"mode": "absolute", "steps": thresholds},
        "unit": unit,
    }
    for name, value in (("custom", custom), ("decimals", decimals), ("min", lowest), ("max", highest),
                        ("links", list(links)), ("noValue", nothing)):
        if value not in (None, []):
            defaults[name] = value
    targets = [dict(query, refId=chr(ord("A") + index)) for index, query in enumerate(queries)]
    made = {
        "type": kind,
        "title": title,
        "description": " ".join(description.split()),
        "datasource": targets[0]["datasource"],
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
        "options": options,
        "targets": targets,
    }
    if transformations:
        made["transformations"] = list(transformations)
    if interval:
        made["interval"] = interval
    if repeat:
        made |= {"repeat": repeat, "repeatDirection": "h", "maxPerRow": 4}
    return made


def stat(title, description, unit, queries, *, thresholds, width=4, height=4, calc="lastNotNull", text="auto", **more):
    """Returns a panel with one large number."""
    options = {
        "colorMode": "value",
        "graphMode": "none" if queries[0]["instant"] else "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": [calc], "fields": "", "values": False},
        "textMode": text,
        "wideLayout": True,
    }
    return panel("stat", title, description, unit, queries, options, thresholds=thresholds, width=width, height=height,
                 color="thresholds", **more)


def lines(title, description, unit, queries, *, thresholds=PLAIN, width=12, height=8, stacked=False, band=False, log=False, **more):
    """Returns a panel with lines over time. Thresholds are drawn as dashed lines or, with `band`, as background areas.
    Only a panel of full width has room for a legend with numbers. With `log`, long and short durations are both readable.
    `decimals=0` would leave an axis of shares without numbers, because Grafana then labels only whole numbers."""
    custom = {
        "drawStyle": "line",
        "fillOpacity": 60 if stacked else 0,
        "lineInterpolation": "linear",
        "lineWidth": 0 if stacked else 1,
        "showPoints": "never",
        # Bridges the gap of a missed scrape, but not the absence of a worker.
        "spanNulls": 60_000,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        "thresholdsStyle": {"mode": "area" if band else "dashed" if len(thresholds) > 1 else "off"},
    }
    if log:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
    is_wide = width == WIDTH
    options = {
        "legend": {"calcs": ["mean", "lastNotNull"] if is_wide else [], "displayMode": "table" if is_wide else "list",
                   "placement": "right" if is_wide else "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, description, unit, queries, options, thresholds=thresholds, width=width,
                 height=height, custom=custom, **more)


def states(title, description, queries, mappings, *, unit="none", thresholds=PLAIN, width=12, height=8, **more):
    """Returns a state timeline, one row of colors per series."""
    custom = {"fillOpacity": 80, "lineWidth": 0, "spanNulls": 60_000}
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel("state-timeline", title, description, unit, queries, options, thresholds=thresholds, width=width,
                 height=height, custom=custom, mappings=mappings, color="thresholds", **more)


def table(title, description, queries, *, overrides, transformations=(), width=24, height=9, unit="none", sort=None,
          thresholds=PLAIN, **more):
    """Returns a table panel. Units of columns are set in `overrides`."""
    options = {
        "cellHeight": "sm",
        "showHeader": True,
        "sortBy": [{"desc": sort[1], "displayName": sort[0]}] if sort else [],
    }
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False}
    return panel("table", title, description, unit, queries, options, thresholds=thresholds, width=width, height=height,
                 custom=custom, color="thresholds", overrides=overrides, transformations=transformations, **more)


def heatmap(title, description, unit, queries, *, width=12, height=8):
    """Returns a heatmap of durations over time, from the buckets of a histogram."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {"exponent": 0.5, "fill": "dark-orange", "mode": "scheme", "reverse": False, "scale": "exponential",
                  "scheme": "Viridis", "steps": 64},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }
    custom = {"scaleDistribution": {"type": "linear"}}
    return panel("heatmap", title, description, unit, queries, options, thresholds=PLAIN, width=width, height=height,
                 custom=custom)


def row(title, panels=None, *, repeat=None):
    """Returns a row heading. With `panels`, the row starts folded, and Grafana queries its panels only when the row is open."""
    made = {"type": "row", "title": title, "collapsed": panels is not None, "panels": panels or [],
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": 0}}
    if repeat:
        made["repeat"] = repeat
    return made


def by_name(name, **properties):
    """Returns an override for the field with this name; `__` in a property name stands for a dot."""
    return _override({"id": "byName", "options": name}, properties)


def by_query(ref, **properties):
    """Returns an override for all fields of a query."""
    return _override({"id": "byFrameRefID", "options": ref}, properties)


def by_pattern(pattern, **properties):
    """Returns an override for the fields whose names match the pattern."""
    return _override({"id": "byRegexp", "options": pattern}, properties)


def _override(matcher, properties):
    return {"matcher": matcher,
            "properties": [{"id": name.replace("__", "."), "value": value} for name, value in properties.items()]}


DASHED = {"custom__lineStyle": {"dash": [8, 6], "fill": "dash"}}
COLOURED_TEXT = {"type": "color-text"}


def colored(color, **properties):
    """Returns properties of a field with a fixed color."""
    return {"color": {"fixedColor": color, "mode": "fixed"}} | properties


def band(lower, upper, name):
    """Returns overrides of two queries that shade the area between them. Only the upper line fills: the lower one, with this
    name, would shade the area down to zero."""
    edge = colored(BLUE, custom__lineWidth=0)
    return [by_query(lower, **edge), by_query(upper, **edge, custom__fillOpacity=20, custom__fillBelowTo=name)]


def leveled(unit, levels, **properties):
    """Returns properties of a table column whose text is colored by thresholds."""
    return {"unit": unit, "thresholds": {"mode": "absolute", "steps": levels}, "custom__cellOptions": COLOURED_TEXT} | properties


def by_worker(expr, workers, most="topk", legend="{{worker}}"):
    """Returns the queries and overrides of a panel that shows each worker or, if there are more than MANY, quantiles and the
    five most extreme workers of the time range. `workers` is an expression for the number of workers."""
    many = f"and on () ({workers} > {MANY})"
    over_range = f"avg_over_time(({expr})[$__range:$__interval] @ end())"
    quantiles = [query(f"quantile({share}, {expr}) {many}", name) for share, name in ((0.1, "p10"), (0.9, "p90"), (0.5, "median"))]
    queries = [query(f"({expr}) and on () ({workers} <= {MANY})", legend), *quantiles,
               query(f"({expr}) and on (worker) {most}(5, {over_range}) {many}", legend)]
    return queries, [*band("B", "C", "p10"), by_query("D", **colored(BLUE, custom__lineWidth=2))]


def firing(labels=""):
    """Returns a panel with the names of the firing alerts."""
    alerts = f'sum by (alertname) (ALERTS{{alertstate="firing", alertname=~"{ALERTS}"{labels}}})'
    none = 'label_replace(vector(0), "alertname", "None", "", "")'
    return stat("Firing alerts", "Alerts of evenstep that fire now. docs/how-to/alerts.md has the steps to take for each.", COUNT,
                [query(f"{alerts} or on () {none}", "{{alertname}}", instant=True)], thresholds=steps((1, RED)), text="name", width=3)


ALERTS = "|".join(["WorkerStraggling", "PredictionErrorDrift", "AgentSilent", "GpuUnreadable", "AllocateSlow", "RefitFailing", "StoreLagging", "PredictorGone"])


def columns(**names):
    """Returns transformations that merge the results of instant queries into one table, by their labels."""
    return [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {
            "excludeByName": {"Time": True} | {name: True for name, title in names.items() if title is None},
            "indexByName": {name: index for index, name in enumerate(names)},
            "renameByName": {name: title for name, title in names.items() if title is not None},
        }},
    ]


def value_of(ref):
    """Returns Grafana's name for the value column of a query in a table."""
    return f"Value #{ref}"


def values(*texts):
    """Returns value mappings for 0, 1, ..: (text, color)."""
    return [{"type": "value", "options": {
        str(number): {"color": color, "index": number, "text": text} for number, (text, color) in enumerate(texts)}}]


# Reasons for slow workers, in the words of the predictor's page.
CAUSES = [{"type": "value", "options": {
    reason: {"index": index, "text": text} for index, (reason, text) in enumerate({
        "thermal_throttling": "GPU too hot", "cpu_contention": "Waits for a core", "loader_wait": "Waits for data",
        "memory_pressure": "Short of memory", "unknown": "Slow, cause unknown"}.items())}}]


def link(title, url):
    """Returns a link from a value to another dashboard."""
    return {"targetBlank": False, "title": title, "url": url}


def to_dashboard(uid, **variables):
    """Returns the URL of a dashboard with the same time range and data source, and these variables."""
    passed = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return f"/d/{uid}?${{__url_time_range}}&${{datasource:queryparam}}{passed}"


def source_variable():
    """Returns the variable that selects the data source."""
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": PROMETHEUS["type"], "regex": "",
            "current": {}, "hide": 0, "includeAll": False, "multi": False, "options": [], "refresh": 1,
            "skipUrlSync": False}


def variable(name, label, description, query, *, many=False, hide=0, pattern=""):
    """Returns a query variable, refreshed when the time range changes."""
    kind = 3 if query.startswith("query_result(") else 1
    asked = {"qryType": kind, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    made = {"type": "query", "name": name, "label": label, "description": description, "datasource": PROMETHEUS,
            "definition": query, "query": asked, "current": {}, "hide": hide,
            "includeAll": many, "multi": many, "options": [], "refresh": 2, "regex": pattern, "skipUrlSync": False, "sort": 1}
    if many:
        made["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
        made["allValue"] = ".+"
    return made


def annotation(name, expr, color, *, title, text="", tags="", value_is_time=False, enable=True):
    """Returns annotations where an expression is above 0 or, with `value_is_time`, at its value in milliseconds."""
    return {"name": name, "datasource": PROMETHEUS, "enable": enable, "hide": False, "iconColor": color,
            "expr": " ".join(expr.split()), "step": "10s", "tagKeys": tags, "textFormat": text, "titleFormat": title,
            "useValueForTime": value_is_time}


def dashboard(uid, title, description, panels, *, variables, docs, annotations=()):
    """Returns a dashboard with its panels placed and numbered. Its description names the pages of `docs`, because the documentation
    has no public address."""
    _place(panels)
    return {
        "uid": uid,
        "title": title,
        "description": " ".join([*description.split(), *(f"{what}: {page}." for what, page in ({"Terms": "docs/glossary.md"} | docs).items())]),
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {"hidden": False, "refresh_intervals": ["5s", "10s", "30s", "1m", "5m", "15m"]},
        "templating": {"list": variables},
        "annotations": {"list": list(annotations)},
        "links": [{"asDropdown": True, "icon": "external link", "includeVars": True, "keepTime": True, "tags": [TAG],
                   "targetBlank": False, "title": "Evenstep", "tooltip": "Other dashboards of evenstep",
                   "type": "dashboards", "url": ""}],
        "panels": panels,
    }


def _place(panels, first_id=1, y=0):
    """Places panels from left to right, in rows as high as their highest panel."""
    x = highest = 0
    for made in panels:
        made["id"], first_id = first_id, first_id + 1
        position = made["gridPos"]
        if x + position["w"] > WIDTH:
            x, y, highest = 0, y + highest, 0
        position["x"], position["y"] = x, y
        x, highest = x + position["w"], max(highest, position["h"])
        if made["type"] == "row" and made["panels"]:
            first_id = _place(made["panels"], first_id, y + 1)
    return first_id
