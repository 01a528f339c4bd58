"""wan_core.importers.maxdiffusion"""
