"""The life of one real server: started, proved, measured behind gates, ended with proof."""
