"""Write docs/monitoring/grafana/ from tools/dashboards.py; `--check`: whether they differ.

Run as `python -m tools.gen_dashboards [--check]`. The files are dashboards as Grafana imports them:
they ask for a data source and have ids that stay, so that a newer file replaces an older one.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from tools.dashboard_words import Choice, Dashboard, Panel
from tools.dashboards import FILES

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "monitoring" / "grafana"
SCHEMA_VERSION = 39
"""Of Grafana 11; newer ones bring it up to date when they load it."""
COLUMNS, WIDTH, HEIGHT = 24, 8, 8
"""Of Grafana's grid; a panel is a third of it."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _variables(choices: tuple[Choice, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    for choice in choices:
        found.append(
            {
                "name": choice.name,
                "label": choice.name,
                "type": "query",
                "datasource": SOURCE,
                "query": {"query": choice.query, "refId": choice.name},
                "definition": choice.query,
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                **({"allValue": choice.every} if choice.every else {}),
                "current": {"text": ["All"], "value": ["$__all"]},
            }
        )
    return found


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": number,
        "title": panel.title,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
    }
    if panel.text:
        return made | {"type": "text", "options": {"mode": "markdown", "content": panel.text}}
    return made | {
        "type": "timeseries",
        "datasource": SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": {"axisSoftMin": 0}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }


def _panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for row in dashboard.rows:
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for place, panel in enumerate(row.panels):
            line, column = divmod(place, COLUMNS // WIDTH)
            made.append(_panel(panel, len(made) + 1, column * WIDTH, y + line * HEIGHT))
        y += -(-len(row.panels) // (COLUMNS // WIDTH)) * HEIGHT
    return made


def text_of(dashboard: Dashboard) -> str:
    """The file."""
    whole = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.meaning,
        "tags": ["octavo"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "Octavo",
                "tags": ["octavo"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": _variables(dashboard.choices)},
        "panels": _panels(dashboard),
    }
    return json.dumps(whole, indent=1) + "\n"


def main() -> int:
    """Write the files, or compare them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    stale = False
    for name, dashboard in FILES.items():
        path, text = FOLDER / name, text_of(dashboard)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)} differs: run `make dashboards`")
            stale = True
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
