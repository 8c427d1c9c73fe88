"""Pictures of graphs and costs: text first, Graphviz files as plain text, matplotlib only where a picture is drawn."""
