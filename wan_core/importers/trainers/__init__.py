"""wan_core.importers.trainers"""
